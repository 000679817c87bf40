package prompt

// poolingField reads a member that enters the prompt of a request which asks for what a
// model makes of prompts, not for an answer: embeddings, classes.
func (p *Prompt) poolingField(r *request) bool {
	lo := len(p.Segments)
	switch string(p.scan.key) {
	case "input", "text":
		p.prompts(&r.first, textPrompt)
	case "input_ids":
		p.prompts(&r.second, textPrompt)
		r.parts[partSecond] = p.since(lo)
		return true
	case "messages":
		p.messages()
	default:
		return false
	}
	r.parts[partBody] = p.since(lo)
	return true
}

// pairField reads a member that enters the prompt of a request which scores pairs of
// texts. The prompts are pairs of one text and one of those it is compared with, of which
// either side may have one only. It is the first side that many prompts share.
func (p *Prompt) pairField(r *request) bool {
	s := &p.scan
	lo := len(p.Segments)
	switch string(s.key) {
	case "query", "queries", "text_1", "data_1":
		p.prompts(&r.first, partPrompt)
		r.parts[partBody] = p.since(lo)
	case "documents", "items", "text_2", "data_2":
		p.prompts(&r.second, partPrompt)
		r.parts[partSecond] = p.since(lo)
	case "instruction", "instruct":
		name := s.keySpan
		if v := s.json(); v.form != absent {
			p.open(KindControl, name)
			p.open(KindValue, v)
		}
		r.parts[partInstruction] = p.since(lo)
	default:
		return false
	}
	return true
}
