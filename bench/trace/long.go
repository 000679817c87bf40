package trace

// Long makes 20 minutes of conversations about something large, such as a book or
// all of a program's source: a first turn takes an engine 13 seconds, and who has
// to compute it again waits as long. About 15 are under way at a time; an engine with
// 524,288 tokens of cache holds five.
//
//   - 0.096 sessions a second start at random (Poisson). Each begins with 100,000 tokens
//     of its own; these alone take 15 % of what the fleet can prefill.
//   - A turn adds 200 to 2,000 tokens, uniform. Answers, pauses and the number of turns
//     are those of [Agents].
//   - A session ends before its prompt is longer than 120,000 tokens.
func Long(seed uint64) []Request {
	const (
		end   = 20 * 60
		first = 100_000
		rate  = 0.15 * fleetRate / first
	)
	g := newGenerator(seed)
	for at := range g.poisson(rate, end) {
		s := &session{at: at, length: first}
		for range g.turns() {
			added := g.between(200, 2000)
			if s.length+added > longest || s.at >= end {
				break
			}
			g.turn(s, added)
		}
	}
	return g.finish()
}
