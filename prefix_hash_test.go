package inference

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/selection"
)

func parsePrefixHash(block string) (*PrefixHash, error) {
	p := new(PrefixHash)
	return p, p.UnmarshalCaddyfile(caddyfile.NewTestDispenser("prefix_hash " + block))
}

func TestEveryOptionOfPrefixHashIsParsed(t *testing.T) {
	for text, expected := range map[string]*PrefixHash{
		"":                         {},
		"{\nprefix_length 2KiB\n}": {PrefixLength: 2 << 10},
		"{\nprefix_tokens 256\n}":  {PrefixTokens: 256},
		"{\nload_factor 1.5\n}":    {LoadFactor: 1.5},
		"{\nmax_body 1MiB\ntune off\nfallback first\naffinity body user\n}": {
			MaxBody: 1 << 20, Tune: "off", FallbackRaw: json.RawMessage(`{"policy":"first"}`), Affinity: []Affinity{{Body: "user"}},
		},
	} {
		p, err := parsePrefixHash(text)
		require.NoError(t, err, text)
		require.Equal(t, expected, p, text)
		inJSON, err := json.Marshal(p)
		require.NoError(t, err)
		again := new(PrefixHash)
		require.NoError(t, caddy.StrictUnmarshalJSON(inJSON, again))
		require.Equal(t, p, again)
	}
	for text, said := range map[string][]string{
		"256":                      {"'256'", "block"},
		"{\nprefix 256\n}":         {"'prefix'", "prefix_length, prefix_tokens, load_factor, max_body, fallback, affinity and tune"},
		"{\nmax_tree_size 1MiB\n}": {"'max_tree_size'"},
		"{\nprefix_length\n}":      {"prefix_length takes one size"},
		"{\nprefix_length long\n}": {"prefix_length 'long'"},
		"{\nprefix_length 1KiB\nprefix_length 1KiB}": {"prefix_length"},
		"{\nprefix_tokens\n}":                        {"prefix_tokens takes one number"},
		"{\nprefix_tokens 1KiB\n}":                   {"prefix_tokens '1KiB'", "such as 256"},
		"{\nprefix_tokens 0\n}":                      {"prefix_tokens '0'"},
		"{\nprefix_tokens 1\nprefix_tokens 1\n}":     {"prefix_tokens is there twice"},
		"{\nload_factor\n}":                          {"load_factor takes one factor"},
		"{\nload_factor high\n}":                     {"load_factor 'high'"},
		"{\nload_factor 2\nload_factor 2\n}":         {"load_factor is there twice"},
	} {
		_, err := parsePrefixHash(text)
		requireSays(t, err, text, append(said, "prefix_hash: "))
	}
}

func TestAPrefixHashOutOfBoundsIsRejected(t *testing.T) {
	valid := PrefixHash{PrefixLength: defaultPrefixLength, LoadFactor: defaultLoadFactor, MaxBody: minBody, Tune: "on"}
	require.NoError(t, valid.Validate())
	for said, change := range map[string]func(p *PrefixHash){
		"prefix_length of 63 bytes: must be from 64":  func(p *PrefixHash) { p.PrefixLength = 63 },
		"prefix_length of -1 bytes: must be from 64":  func(p *PrefixHash) { p.PrefixLength = -1 },
		"prefix_length of 268435457 bytes: must be":   func(p *PrefixHash) { p.PrefixLength = 1<<28 + 1 },
		"prefix_length and prefix_tokens say":         func(p *PrefixHash) { p.PrefixTokens = 100 },
		"prefix_tokens 15: must be from 16":           func(p *PrefixHash) { p.PrefixLength, p.PrefixTokens = 0, 15 },
		"prefix_tokens -1: must be from 16":           func(p *PrefixHash) { p.PrefixLength, p.PrefixTokens = 0, -1 },
		"prefix_tokens 9223372036854775807: must be":  func(p *PrefixHash) { p.PrefixLength, p.PrefixTokens = 0, math.MaxInt64 },
		"load_factor of 0.99: must be from 1 to 1000": func(p *PrefixHash) { p.LoadFactor = 0.99 },
		"load_factor of NaN: must be from 1 to 1000":  func(p *PrefixHash) { p.LoadFactor = math.NaN() },
		"load_factor of +Inf: must be from 1 to 1000": func(p *PrefixHash) { p.LoadFactor = math.Inf(1) },
		"max_body of 1 bytes":                         func(p *PrefixHash) { p.MaxBody = 1 },
		"affinity 1: it is empty":                     func(p *PrefixHash) { p.Affinity = []Affinity{{}} },
	} {
		p := valid
		change(&p)
		require.ErrorContains(t, p.Validate(), "prefix_hash: "+said)
	}
}

// prefixKey returns the key of the opening of a request, in a process that knows nothing.
func prefixKey(t *testing.T, path, body string, length int) uint64 {
	t.Helper()
	return keyed(t, path, body, length).prefix
}

// keyed returns the ticket of a request with its keys.
func keyed(t *testing.T, path, body string, length int) *ticket {
	t.Helper()
	s := newState()
	k := &ticket{state: s, owner: &Policy{prefix: length}, scratch: s.takeScratch()}
	prompt.Parse(&k.scratch.prompt, path, []byte(body))
	k.scratch.chunker.Reset()
	k.writeKey(&k.scratch.prompt, k.scratch.chunker)
	return k
}

// TestAnOpeningHasTheSameKeyEverywhere has keys as they were found on another machine:
// routers of several versions may run side by side.
func TestAnOpeningHasTheSameKeyEverywhere(t *testing.T) {
	long := strings.Repeat("long text, ", 1000)
	for i, test := range []struct {
		path, body string
		want       uint64
	}{
		{"/v1/chat/completions", chatOf(message("user", "hello")), 0xa6307897026bb283},
		{"/v1/chat/completions", chatOf(message("system", long) + "," + message("user", long)), 0xc1b69faf0cb369f9},
		{"/v1/messages", `{"model":"m1","system":"be kind","messages":[` + message("user", long) + `]}`, 0xbddbeea523b5883e},
		{"/v1/completions", `{"model":"m1","cache_salt":"s","prompt":"` + long + `"}`, 0x609eedff3920756c},
		{"/v1/completions", `{"model":"m1","lora_path":"l","prompt":[1,2,3,4]}`, 0xef64592187c15c8c},
	} {
		require.Equal(t, test.want, prefixKey(t, test.path, test.body, defaultPrefixLength), i)
	}
}

func TestWhatKeepsCachesApartKeepsOwnersApart(t *testing.T) {
	keys := make(map[uint64]string)
	for _, fields := range []string{
		`"model":"m1"`, `"model":"m2"`, `"model":"m1","cache_salt":"a"`, `"model":"m1","lora_path":"a"`, `"model":"m1","extra_key":"a"`,
		`"model":"m1","tools":[{"type":"function","function":{"name":"f"}}]`, `"model":"m1","chat_template_kwargs":{"thinking":true}`,
	} {
		key := prefixKey(t, "/v1/chat/completions", `{`+fields+`,"messages":[`+message("user", "hello")+`]}`, 1024)
		require.NotContains(t, keys, key, fields)
		keys[key] = fields
	}
}

func TestTheKeyIsOfTheOpeningOnly(t *testing.T) {
	const chat = "/v1/chat/completions"
	system, question := message("system", strings.Repeat("s", 3000)), strings.Repeat("q", 2000)
	key := prefixKey(t, chat, chatOf(system+","+message("user", question)), 1000)
	require.Equal(t, key, prefixKey(t, chat, chatOf(system+","+message("user", question+"more")), 1000))
	require.Equal(t, key, prefixKey(t, chat, `{"temperature":0.5, "messages": [`+system+`, {"content":"`+strings.ReplaceAll(question, "q", `\u0071`)+`", "role":"user"}], "model":"m1"}`, 1000))
	require.NotEqual(t, key, prefixKey(t, chat, chatOf(system+","+message("user", question)), 1001))
	require.NotEqual(t, key, prefixKey(t, chat, chatOf(system+","+message("user", "Q"+question)), 1000))
	require.NotEqual(t, key, prefixKey(t, chat, chatOf(message("system", strings.Repeat("s", 3001))+","+message("user", question)), 1000))
}

// TestALongerKeyTellsPromptsApart has prompts that begin alike for 1,000 bytes.
func TestALongerKeyTellsPromptsApart(t *testing.T) {
	const chat = "/v1/chat/completions"
	of := func(text string) *ticket { return keyed(t, chat, chatOf(message("user", text)), 1000) }
	alike := strings.Repeat("a", 1500)
	one, other, longer := of(alike+"b"+alike+alike), of(alike+"c"+alike+alike), of(alike+"b"+alike+alike+"more")
	require.Equal(t, one.prefix, other.prefix)
	require.NotEqual(t, one.longer, other.longer)
	require.Equal(t, one.longer, longer.longer)
	require.NotEqual(t, one.longer, one.prefix)
	short := of("hello")
	require.Equal(t, short.prefix, short.longer, "there is no more of it")
	require.Equal(t, longer.longer, prefixKey(t, chat, chatOf(message("user", alike+"b"+alike+alike)), 4000))
}

// TestImagesTellBeginningsApart has two pictures with the same first 64 kB.
func TestImagesTellBeginningsApart(t *testing.T) {
	picture := func(end string) string {
		return chatOf(`{"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			strings.Repeat("A", 64<<10) + end + `"}}]}`)
	}
	const chat = "/v1/chat/completions"
	key := prefixKey(t, chat, picture("B"), 1024)
	require.Equal(t, key, prefixKey(t, chat, picture("B"), 1024))
	require.NotEqual(t, key, prefixKey(t, chat, picture("C"), 1024))
}

func TestNoKeyIsMadeWhereNobodyAsksForOne(t *testing.T) {
	require.Zero(t, prefixKey(t, "/v1/chat/completions", chatOf(message("user", "hello")), 0))
}

// TestBeginningsSpreadOverTheFleet sends many prompts one after another, which have
// nothing in common or a system prompt.
func TestBeginningsSpreadOverTheFleet(t *testing.T) {
	for name, system := range map[string]string{"nothing in common": "", "a system prompt": message("system", strings.Repeat("s", 5000)) + ","} {
		t.Run(name, func(t *testing.T) {
			engines := newEngines(t, 4)
			s := startSite(t, "lb_policy prefix_hash", addresses(engines)...)
			random := rand.New(rand.NewPCG(61, 61))
			for range 400 {
				s.chat(chatOf(system + message("user", letters(random, 2000))))
			}
			for _, n := range asked(engines) {
				require.LessOrEqual(t, n, 160) // 100, give or take 9
			}
			requireIdle(t)
		})
	}
}

// TestConversationsStayWithTheOwnerOfTheirBeginning interleaves conversations whose first
// questions are shorter and longer than what is looked at.
func TestConversationsStayWithTheOwnerOfTheirBeginning(t *testing.T) {
	for _, opening := range []int{20, 1600} {
		engines := newEngines(t, 4)
		s := startSite(t, "lb_policy prefix_hash", addresses(engines)...)
		random := rand.New(rand.NewPCG(62, uint64(opening)))
		history, home := make([]string, 24), make([]int, 24)
		homes := map[int]bool{}
		for turn := range 4 {
			for i := range history {
				if turn == 0 {
					history[i] = message("system", "Be kind.") + "," + message("user", letters(random, opening))
				} else {
					history[i] += "," + message("assistant", letters(random, 80)) + "," + message("user", letters(random, 600))
				}
				engine := served(t, engines, func() { s.chat(chatOf(history[i])) })
				if turn == 0 {
					home[i] = engine
					homes[engine] = true
				}
				require.Equal(t, home[i], engine, "conversation %d left at turn %d", i, turn)
			}
		}
		require.GreaterOrEqual(t, len(homes), 3)
		last := s.lastDecision(4 * len(history))
		require.Equal(t, "prefix_hash", last["policy"])
		require.Equal(t, "owner", last["reason"])
		require.Positive(t, last["held_tokens"], "what was sent where is remembered, though not chosen by")
		requireIdle(t)
	}
}

// TestASecondRouterChoosesTheSame has two configs without anything in common but the
// upstreams, in another order: what the first has learned is gone.
func TestASecondRouterChoosesTheSame(t *testing.T) {
	engines := newEngines(t, 4)
	random := rand.New(rand.NewPCG(63, 63))
	bodies := make([]string, 30)
	for i := range bodies {
		bodies[i] = chatOf(message("user", letters(random, 500)))
	}
	list := addresses(engines)
	var owners [2][]int
	for router := range owners {
		t.Run(fmt.Sprint("router ", router), func(t *testing.T) {
			s := startSite(t, "lb_policy prefix_hash", list...)
			for _, body := range bodies {
				owners[router] = append(owners[router], served(t, engines, func() { s.chat(body) }))
				require.Equal(t, "owner", s.lastDecision(len(owners[router]))["reason"])
			}
		})
		list[0], list[1], list[2], list[3] = list[2], list[3], list[1], list[0]
	}
	require.Equal(t, owners[0], owners[1])
}

// TestABeginningThatAllShareDoesNotOverloadItsOwner sends requests of one beginning at
// once.
func TestABeginningThatAllShareDoesNotOverloadItsOwner(t *testing.T) {
	const workers, requests = 4, 64
	engines := newEngines(t, workers)
	proceed := make(chan struct{})
	for _, e := range engines {
		e.respondWith(func(w http.ResponseWriter, r *http.Request) {
			<-proceed
			answer(w, r)
		})
	}
	s := startSite(t, "lb_policy prefix_hash", addresses(engines)...)
	body := chatOf(message("user", strings.Repeat("all ask the same. ", 100)))
	var clients sync.WaitGroup
	for range requests {
		clients.Go(func() { s.chat(body) })
	}
	open := func() (n int) {
		for _, e := range engines {
			n += e.openRequests()
		}
		return n
	}
	require.Eventually(t, func() bool { return open() == requests }, patience, tick)
	for _, e := range engines {
		require.LessOrEqual(t, float64(e.openRequests()), defaultLoadFactor*requests/workers)
		require.Positive(t, e.openRequests())
	}
	close(proceed)
	clients.Wait()
	reasons := map[any]int{}
	for n := range requests {
		reasons[s.lastDecision(n + 1)["reason"]]++
	}
	require.Equal(t, requests, reasons["owner"]+reasons["bound"], reasons)
	require.Positive(t, reasons["owner"])
	require.Greater(t, reasons["bound"], requests/2)
	requireIdle(t)
}

// TestAnOwnerThatIsDownIsPassedOverAndTakenAgain has one of two upstreams come up late.
func TestAnOwnerThatIsDownIsPassedOverAndTakenAgain(t *testing.T) {
	up, down := newEngine(t), freeAddress(t)
	s := startSite(t, "lb_policy prefix_hash\nlb_retries 2", up.address(), down)
	random := rand.New(rand.NewPCG(64, 64))
	passed := 0
	for n := range 40 {
		s.chat(chatOf(message("user", letters(random, 300))))
		last := s.lastDecision(n + 1)
		require.Equal(t, up.address(), last["upstream"])
		if last["reason"] != "owner" {
			require.Equal(t, "owner_unavailable", last["reason"])
			passed++
		}
	}
	require.Positive(t, passed)
	require.Less(t, passed, 40)
	requireIdle(t)
}

func TestTheOpeningIsCountedInTokensOfFourBytes(t *testing.T) {
	for tokens, length := range map[int64]int64{16: 64, 100: 400, math.MaxInt64: maxPrefixLength * tokenBytes} {
		require.Equal(t, length, (&PrefixHash{PrefixTokens: tokens}).length())
	}
}

// TestATreeThatNobodyAsksForIsTheUsualOne leaves the limits of another policy behind.
func TestATreeThatNobodyAsksForIsTheUsualOne(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware {\nmax_tree_size 1MiB\neviction_interval 5m\n}", engine.address())
	require.EqualValues(t, 1<<20, theState(t).tree.Stats().MaxBytes)
	s.load(s.caddyfile("lb_policy prefix_hash", engine.address()))
	require.EqualValues(t, defaultMaxTreeSize, theState(t).tree.Stats().MaxBytes)
	require.EqualValues(t, defaultEvictionInterval, theState(t).interval.Load())
}

// TestAKeyCostsNoAllocation writes key streams as requests do once memory is in use.
func TestAKeyCostsNoAllocation(t *testing.T) {
	s := newState()
	k := &ticket{state: s, owner: &Policy{prefix: 1024}, scratch: s.takeScratch()}
	body := []byte(chatOf(message("system", strings.Repeat("s", 8000)) + "," + message("user", strings.Repeat("q", 8000))))
	write := func() {
		prompt.Parse(&k.scratch.prompt, "/v1/chat/completions", body)
		k.scratch.chunker.Reset()
		k.writeKey(&k.scratch.prompt, k.scratch.chunker)
	}
	write()
	requireNoAllocations(t, 100, write)
}

// TestAPromptHasTheSameOwnerEverywhere goes from bodies to upstreams, whose addresses are
// what no process and no machine changes.
func TestAPromptHasTheSameOwnerEverywhere(t *testing.T) {
	s := newState()
	p := &PrefixHash{loadFactor: defaultLoadFactor}
	var owners []string
	for i := range 8 {
		list := make([]selection.Candidate, 10)
		for i := range list {
			list[i].Worker = s.fleet.Join(fmt.Sprintf("vllm-%d:8000", i))
		}
		body := chatOf(message("user", fmt.Sprint("question ", i)))
		k := &ticket{state: s, prefix: prefixKey(t, "/v1/chat/completions", body, defaultPrefixLength), tokens: 10}
		choice, r := p.choose(k, list)
		require.Equal(t, selection.Owner, choice.Reason)
		r.Release(s.clock.now())
		owners = append(owners, list[choice.Index].Worker.Address())
	}
	require.Equal(t, []string{
		"vllm-6:8000", "vllm-0:8000", "vllm-4:8000", "vllm-7:8000", "vllm-2:8000", "vllm-8:8000", "vllm-8:8000", "vllm-5:8000",
	}, owners)
}
