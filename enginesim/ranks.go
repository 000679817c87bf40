package enginesim

import (
	"fmt"
	"net/http"
	"strconv"
)

// anyRank is the rank of a request that names none.
const anyRank = -1

// rankFor is the rank that a request's X-Data-Parallel-Rank names. As in vLLM, what is no
// number names none, and a number without a rank is an error.
func (s *Server) rankFor(r *http.Request) (int, *apiError) {
	rank, err := strconv.Atoi(r.Header.Get("X-Data-Parallel-Rank"))
	if err != nil {
		return anyRank, nil
	}
	if rank < 0 || rank >= s.opts.Ranks {
		return anyRank, badRequest(fmt.Sprintf("data_parallel_rank %d is out of range [0, %d).", rank, s.opts.Ranks), "")
	}
	return rank, nil
}

// rank is the engine of a rank. Requests that name none take turns.
func (l *life) rank(named int) *engine {
	if named != anyRank {
		return l.ranks[named]
	}
	turn := l.turn.Add(1) - 1
	return l.ranks[turn%uint64(len(l.ranks))]
}
