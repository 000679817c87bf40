// Package prompt tells from a request's body what an inference engine will prefill.
//
// Parse reads the bytes of a request, of any of the APIs that engines speak, in one
// pass and finds the model, the few fields that a router needs, and the prompt as a list
// of segments in the order in which a chat template puts them: what steers the template,
// tools, system text, messages. Prompt.WriteTo then writes the prompt's key stream.
// Prompts that the engine would see as equal have equal key streams however their JSON
// is spelled, prompts that differ have different ones, and a conversation that goes on
// has the earlier one's stream as a prefix. The same conversation has the same stream
// whether it comes as chat completions, as messages or as responses.
//
// Of several prompts in one request the first is in the stream, and the others are counted.
//
//	prompt.Parse(p, r.URL.Path, body)
//	if !p.Empty() {
//		p.WriteTo(chunker)
//	}
//
// The body need not be whole: of a first part of it, the prompt's first part is read.
//
// It is not a JSON decoder and not a validator: values that do not enter the prompt are
// stepped over unseen, and whether a request is well-formed is for the engine to say.
// It does not render chat templates and does not count tokens. Nothing is copied out of
// the body but names that have escapes in them, and memory does not grow with the prompt.
//
// # The key stream
//
// The stream is a sequence of frames. A frame is a double quote, one byte that names its
// [Kind], and its content: text in its shortest JSON escaping, a compact JSON value, token
// ids in decimal with commas, or a hexadecimal digest. Text in JSON escaping holds no bare
// quote and a JSON value ends itself, so a stream can be taken apart in one way only. No
// frame says that a message or the prompt has ended, as that would spoil the prefix.
//
// Most bodies are in that form already, so content is handed on in place.
package prompt
