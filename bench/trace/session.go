package trace

// session is a conversation: each turn's prompt is the one before, its answer and
// what was added.
type session struct {
	at     float64 // seconds at which its next turn comes
	length int     // tokens so far
	blocks []uint64
}

// turn makes a session's next request, with that many tokens added, and the pause
// behind it: 1 s and 12 ms a token for the answer, and the client's.
func (g *generator) turn(s *session, added int) {
	s.length += added
	s.blocks = g.extend(s.blocks, s.length)
	blocks := g.closed(s.blocks)
	output := g.output()
	g.add(s.at, s.length, output, blocks)
	s.length += output
	s.at += 1 + 0.012*float64(output) + g.pause()
}

// turns returns how many turns a session has at most: about twelve.
func (g *generator) turns() int { return 1 + int(g.random.ExpFloat64()*11) }
