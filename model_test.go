package inference

import (
	"bufio"
	"cmp"
	"container/heap"
	"container/list"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"
)

// The model replays traffic in virtual time through the real tree, ledger and
// choice, in front of modelled engines: prefill of modelRate tokens a second, one
// prompt after another; decode of 6 ms + 0.35 ms for each running request a
// token; a cache of blocks, least recently used first out. It is exact and takes
// a second or two, so routing quality can be a test.
const (
	modelEngines = 8
	modelRate    = 8000.0 // tokens a second
	modelBlock   = 512    // tokens
	modelRatio   = 4      // bytes a token
)

// traceRequest is a line of a trace in the format of the Mooncake project: equal
// hash ids stand for equal blocks of 512 tokens.
type traceRequest struct {
	Timestamp float64  `json:"timestamp"` // ms
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// TestRoutingQualityInVirtualTime replays an hour of generated agent traffic. With
// TRACE=file it replays that file instead and only tells what came out.
func TestRoutingQualityInVirtualTime(t *testing.T) {
	if file := os.Getenv("TRACE"); file != "" {
		trace := readTrace(t, file)
		for _, capacity := range []int{524_288, 131_072} {
			t.Logf("%d tokens, round robin: %s", capacity, replay(trace, capacity, roundRobin()))
			t.Logf("%d tokens, cost:        %s", capacity, replay(trace, capacity, leastCost(capacity)))
		}
		return
	}
	trace := agentTrace(1)
	for _, test := range []struct {
		capacity     int
		mean, spread float64 // at most, of round robin's
	}{
		{524_288, 0.20, 1.25},
		{131_072, 0.11, 1.25},
	} {
		t.Run(fmt.Sprintf("%d tokens", test.capacity), func(t *testing.T) {
			blind := replay(trace, test.capacity, roundRobin())
			ours := replay(trace, test.capacity, leastCost(test.capacity))
			t.Logf("round robin: %s", blind)
			t.Logf("cost:        %s", ours)
			require.Less(t, ours.mean, test.mean*blind.mean)
			require.Less(t, ours.busiest, test.spread)
			require.Greater(t, ours.hits, blind.hits)
		})
	}
}

// outcome is what a replay came to.
type outcome struct {
	mean, p50, p90, p99 float64 // time to first token, in seconds
	hits                float64 // share of prompt tokens found in a cache
	busiest             float64 // prefilled tokens of the busiest engine over the mean
}

func (o outcome) String() string {
	return fmt.Sprintf("TTFT mean %.3f p50 %.2f p90 %.2f p99 %.2f s, hit %.3f, busiest/mean %.2f", o.mean, o.p50, o.p90, o.p99, o.hits, o.busiest)
}

// placement chooses an engine for a request at a time. What it returns is told
// when the first token comes, with the tokens that were prefilled, and at the end.
type placement func(r *traceRequest, now time.Time) (engine int, firstToken func(uncached int, now time.Time), end func(now time.Time))

func roundRobin() placement {
	next := -1
	return func(*traceRequest, time.Time) (int, func(int, time.Time), func(time.Time)) {
		next = (next + 1) % modelEngines
		return next, func(int, time.Time) {}, func(time.Time) {}
	}
}

// leastCost is the way of a request through the policy, without Caddy.
func leastCost(capacity int) placement {
	f := fleet.New()
	tree := radix.New(radix.Options{Rewrite: rewrite})
	candidates := make([]selection.Candidate, modelEngines)
	handles := make([]radix.Worker, modelEngines)
	for i := range candidates {
		candidates[i].Worker = f.Join(fmt.Sprint(i))
		handles[i] = tree.Add()
		tree.SetCapacity(handles[i], int64(capacity)*modelRatio)
	}
	var matches radix.Matches
	return func(r *traceRequest, now time.Time) (int, func(int, time.Time), func(time.Time)) {
		key := r.key()
		tree.Match(key, &matches)
		for i := range candidates {
			c := &candidates[i]
			c.Held, c.Private = matches.Bytes(handles[i])/modelRatio, !matches.Shared(handles[i])
		}
		choice, reservation := selection.Place(r.Input, candidates, now)
		tree.Insert(handles[choice.Index], key)
		return choice.Index, func(uncached int, now time.Time) {
			reservation.FirstToken(now)
			reservation.Learn(uncached)
		}, reservation.Release
	}
}

// key makes up the fingerprints of a request's text from its block ids.
func (r *traceRequest) key() radix.Key {
	const each = modelBlock * modelRatio / radix.ChunkBytes
	k := radix.Key{Space: 1, Chunks: make([]uint64, 0, r.Input*modelRatio/radix.ChunkBytes)}
	for i := range cap(k.Chunks) {
		k.Chunks = append(k.Chunks, r.Blocks[i/each]*each+uint64(i%each))
	}
	k.Bytes = len(k.Chunks) * radix.ChunkBytes
	return k
}

// modelEngine is one engine.
type modelEngine struct {
	capacity int // blocks
	used     *list.List
	blocks   map[uint64]*list.Element
	queue    []func(at float64)
	busy     bool
	running  int
	work     int // tokens prefilled
}

// cached returns the prompt tokens that need no prefill: whole blocks, and never
// the last token.
func (e *modelEngine) cached(r *traceRequest) int {
	n := 0
	for _, id := range r.Blocks {
		if e.blocks[id] == nil {
			break
		}
		n += modelBlock
	}
	return min(n, (r.Input-1)/modelBlock*modelBlock)
}

// store keeps the blocks of a prompt; its end is the first to go.
func (e *modelEngine) store(r *traceRequest) {
	for _, id := range slices.Backward(r.Blocks) {
		if b := e.blocks[id]; b != nil {
			e.used.MoveToFront(b)
		} else {
			e.blocks[id] = e.used.PushFront(id)
		}
	}
	for e.used.Len() > e.capacity {
		delete(e.blocks, e.used.Remove(e.used.Back()).(uint64))
	}
}

// replay plays a trace against engines of a capacity in tokens.
func replay(trace []traceRequest, capacity int, place placement) outcome {
	engines := make([]*modelEngine, modelEngines)
	for i := range engines {
		engines[i] = &modelEngine{capacity: capacity / modelBlock, used: list.New(), blocks: map[uint64]*list.Element{}}
	}
	var agenda agenda
	var waits []float64
	hits, tokens := 0, 0
	clock := func(at float64) time.Time {
		return time.Unix(1_700_000_000, 0).Add(time.Duration(at * float64(time.Second)))
	}
	for i := range trace {
		r := &trace[i]
		arrival := r.Timestamp / 1000
		agenda.at(arrival, func(float64) {
			which, firstToken, end := place(r, clock(arrival))
			e := engines[which]
			e.queue = append(e.queue, func(at float64) {
				cached := e.cached(r)
				hits, tokens = hits+cached, tokens+r.Input
				uncached := r.Input - cached
				e.work += uncached
				agenda.at(at+float64(uncached)/modelRate, func(at float64) {
					e.store(r)
					waits = append(waits, at-arrival)
					firstToken(uncached, clock(at))
					e.running++
					agenda.at(at+float64(r.Output)*(0.006+0.00035*float64(e.running)), func(at float64) {
						e.running--
						end(clock(at))
					})
					e.busy = false
					e.next(at)
				})
			})
			e.next(arrival)
		})
	}
	agenda.run()

	slices.Sort(waits)
	at := func(share float64) float64 { return waits[int(share*float64(len(waits)-1))] }
	o := outcome{p50: at(0.5), p90: at(0.9), p99: at(0.99), hits: float64(hits) / float64(tokens)}
	for _, w := range waits {
		o.mean += w / float64(len(waits))
	}
	most, all := 0, 0
	for _, e := range engines {
		most, all = max(most, e.work), all+e.work
	}
	o.busiest = float64(most) * modelEngines / float64(all)
	return o
}

// next starts the oldest prefill if none is under way.
func (e *modelEngine) next(at float64) {
	if e.busy || len(e.queue) == 0 {
		return
	}
	e.busy = true
	start := e.queue[0]
	e.queue = e.queue[1:]
	start(at)
}

// agenda is what happens when, in order.
type agenda struct {
	entries []entry
	count   int
}

type entry struct {
	at    float64
	order int
	do    func(at float64)
}

func (a *agenda) at(at float64, do func(at float64)) {
	a.count++
	heap.Push(a, entry{at, a.count, do})
}

func (a *agenda) run() {
	for len(a.entries) > 0 {
		e := heap.Pop(a).(entry)
		e.do(e.at)
	}
}

func (a *agenda) Len() int      { return len(a.entries) }
func (a *agenda) Swap(i, j int) { a.entries[i], a.entries[j] = a.entries[j], a.entries[i] }
func (a *agenda) Push(x any)    { a.entries = append(a.entries, x.(entry)) }
func (a *agenda) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(a.entries[i].at, a.entries[j].at), a.entries[i].order-a.entries[j].order) < 0
}

func (a *agenda) Pop() any {
	last := a.entries[len(a.entries)-1]
	a.entries = a.entries[:len(a.entries)-1]
	return last
}

// agentTrace makes an hour of coding and tool agents: five products, each with a
// system prompt and tools that all its sessions share; sessions of about twelve
// turns that grow; pauses of seconds between tool calls and of minutes between
// people's questions.
func agentTrace(seed uint64) []traceRequest {
	random := rand.New(rand.NewPCG(seed, 0))
	logNormal := func(median, sigma float64) float64 { return median * math.Exp(sigma*random.NormFloat64()) }
	products := []struct {
		tokens int
		share  float64
	}{{30_000, .35}, {18_000, .25}, {11_000, .20}, {6_000, .15}, {2_000, .05}}
	ids := uint64(1 << 20)
	var trace []traceRequest
	for start := random.ExpFloat64() / 0.22; start < 3600; start += random.ExpFloat64() / 0.22 {
		product, pick := 0, random.Float64()
		for pick -= products[0].share; pick > 0 && product < len(products)-1; pick -= products[product].share {
			product++
		}
		var blocks []uint64
		for i := range products[product].tokens / modelBlock {
			blocks = append(blocks, uint64(product)<<16+uint64(i))
		}
		at, length := start, products[product].tokens
		turns := 1 + int(random.ExpFloat64()*11)
		for turn := range turns {
			median := 700.0
			if turn == 0 {
				median = 1500
			}
			length += int(min(logNormal(median, 1), 20_000))
			if length > 120_000 || at >= 3600 {
				break
			}
			for len(blocks) < length/modelBlock {
				ids++
				blocks = append(blocks, ids)
			}
			ids++ // a part block at the end is another one in the next turn
			output := int(min(max(logNormal(180, 0.9), 8), 4000))
			trace = append(trace, traceRequest{at * 1000, length, output, append(slices.Clone(blocks), ids)})
			length += output
			pause := logNormal(1.5, 1.1)
			if random.IntN(8) == 0 {
				pause = random.ExpFloat64() * 60
			}
			at += 1 + 0.012*float64(output) + pause
		}
	}
	slices.SortStableFunc(trace, func(a, b traceRequest) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	return trace
}

func readTrace(t *testing.T, file string) (trace []traceRequest) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r traceRequest
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		trace = append(trace, r)
	}
	require.NoError(t, lines.Err())
	return trace
}
