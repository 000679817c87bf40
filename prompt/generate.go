package prompt

// generateField reads a member of a request to SGLang's own API that enters the prompt.
func (p *Prompt) generateField(r *request) bool {
	lo := len(p.Segments)
	switch string(p.scan.key) {
	case "text":
		p.prompts(&r.first, textPrompt)
		r.parts[partBody] = p.since(lo)
	case "input_ids":
		p.prompts(&r.second, textPrompt)
		r.parts[partSecond] = p.since(lo)
	case "input_embeds":
		p.opaqueMedia()
		r.parts[partEmbeds] = p.since(lo)
	case "image_data":
		p.mediaData()
		r.parts[partImages] = p.since(lo)
	case "video_data":
		p.mediaData()
		r.parts[partVideos] = p.since(lo)
	case "audio_data":
		p.mediaData()
		r.parts[partSounds] = p.since(lo)
	default:
		return false
	}
	return true
}

// mediaData reads what placeholders in a text stand for: one medium, or a list. They come
// before the text in the key stream, as the same text with other media is another prompt.
func (p *Prompt) mediaData() {
	s := &p.scan
	if !s.at('[') {
		p.opaqueMedia()
		return
	}
	name := s.keySpan
	for s.enter(); s.nextElement(); {
		if p.full() {
			s.skip()
			continue
		}
		if v := s.opaque(); v.form != absent {
			p.open(KindMedia, name)
			p.open(KindDigest, v)
		}
	}
}

// oneText leaves of a prompt that is given as text and as token ids only the text, as
// engines do.
func (p *Prompt) oneText(r *request) {
	if text := r.parts[partBody]; text.hi > text.lo {
		r.parts[partSecond], r.second = run{}, batch{}
	}
}

// oneMedium leaves of the media of several prompts the first prompt's.
func (p *Prompt) oneMedium(r *request) {
	if p.Prompts == 1 {
		return
	}
	for part := partImages; part <= partSounds; part++ {
		media := &r.parts[part]
		if n := media.hi - media.lo; n > 2 {
			r.first.media += n/2 - 1
			media.hi = media.lo + 2
		}
	}
}

// tokenField reads a member of a request to vLLM's own API that enters the prompt. What
// placeholders among the ids stand for comes before them.
func (p *Prompt) tokenField(r *request) bool {
	lo := len(p.Segments)
	switch string(p.scan.key) {
	case "token_ids":
		p.prompts(&r.first, textPrompt)
		r.parts[partBody] = p.since(lo)
	case "features":
		p.features()
		r.parts[partImages] = p.since(lo)
	default:
		return false
	}
	return true
}

// features reads what tells media apart from others that have the same token ids.
func (p *Prompt) features() {
	s := &p.scan
	name := s.keySpan
	if !s.at('{') {
		s.skip()
		return
	}
	if v := s.opaqueMember("mm_hashes"); v.form != absent {
		p.open(KindControl, name)
		p.open(KindDigest, v)
	}
}

// sampling reads the object of sampling parameters that engines' own APIs have.
func (p *Prompt) sampling(r *request) {
	s := &p.scan
	if !s.at('{') {
		s.skip()
		return
	}
	for s.enter(); s.nextKey(); {
		switch string(s.key) {
		case "max_new_tokens", "max_tokens":
			r.maxTokens = s.integer(0, -1)
		case "n":
			p.N = s.integer(1, 1)
		default:
			s.skip()
		}
	}
}
