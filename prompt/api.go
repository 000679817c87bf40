package prompt

import "strings"

// API is the kind of a request.
type API uint8

// The APIs whose prompts are understood. Of requests of any other, and of those that are
// not prefilled, only the fields that are not the prompt are read.
const (
	Unknown       API = iota
	Chat              // OpenAI chat completions
	Completions       // OpenAI completions
	Messages          // Anthropic messages
	Responses         // OpenAI responses
	Generate          // SGLang's own: text or token ids
	TokenGenerate     // vLLM's own: token ids
	Embeddings        // OpenAI embeddings, also of a chat
	Pooling           // vLLM's own: what a model has at hand of each prompt
	Classify          // classes of prompts
	Score             // how well texts go together, in pairs
	Rerank            // documents in the order in which they answer a query
	Tokenize          // what an engine does with a prompt but compute it: tokenize, count, render
)

// names are short and stable, as they are labels of metrics and fields of logs.
var names = [...]string{
	Unknown:       "unknown",
	Chat:          "chat",
	Completions:   "completions",
	Messages:      "messages",
	Responses:     "responses",
	Generate:      "generate",
	TokenGenerate: "token_generate",
	Embeddings:    "embeddings",
	Pooling:       "pooling",
	Classify:      "classify",
	Score:         "score",
	Rerank:        "rerank",
	Tokenize:      "tokenize",
}

// String returns a short name for metrics and logs.
func (a API) String() string {
	if int(a) >= len(names) {
		return names[Unknown]
	}
	return names[a]
}

// endpoints are the ends of paths by which an API is told, the first that fits. Engines
// have most of them both with and without /v1.
var endpoints = [...]struct {
	path string
	api  API
}{
	{"/v1/chat/completions", Chat},
	{"/v1/completions", Completions},
	{"/v1/messages", Messages},
	{"/v1/responses", Responses},
	{"/v1/embeddings", Embeddings},
	{"/inference/v1/generate", TokenGenerate},
	{"/generate", Generate},
	{"/pooling", Pooling},
	{"/classify", Classify},
	{"/score", Score},
	{"/rerank", Rerank},
	{"/tokenize", Tokenize},
	{"/detokenize", Tokenize},
	{"/v1/messages/count_tokens", Tokenize},
	{"/render", Tokenize},
	{"/derender", Tokenize},
}

// APIOf returns the API that requests to path speak. It goes by the path's end, so that
// engines mounted under a prefix are found.
func APIOf(path string) API {
	for i := range endpoints {
		if strings.HasSuffix(path, endpoints[i].path) {
			return endpoints[i].api
		}
	}
	return Unknown
}
