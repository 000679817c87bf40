package inference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/coding"
	"github.com/caddy-inference/caddy-inference/prompt"
)

// TestIDsInARequestAreReadAsTheyStand has all the places where requests have them.
func TestIDsInARequestAreReadAsTheyStand(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	for name, c := range map[string]struct {
		path, body string
		ids        []uint32
	}{
		"completions":                           {"/v1/completions", `{"prompt":[1,22,333]}`, []uint32{1, 22, 333}},
		"the first of several":                  {"/v1/completions", `{"prompt":[[1,2],[3]]}`, []uint32{1, 2}},
		"generate":                              {"/generate", `{"input_ids":[5]}`, []uint32{5}},
		"generate, a list":                      {"/generate", `{"input_ids":[[5,6],[7]]}`, []uint32{5, 6}},
		"token_generate":                        {"/inference/v1/generate", `{"token_ids":[0,4294967295,4294967294]}`, []uint32{0, 4294967295, 4294967294}},
		"embeddings":                            {"/v1/embeddings", `{"input":[9,8]}`, []uint32{9, 8}},
		"white space":                           {"/v1/completions", "{\"prompt\":[ 1,\n22 , 3\t]}", []uint32{1, 22, 3}},
		"of a list cut short, all but the last": {"/v1/completions", `{"prompt":[1,22,33`, []uint32{1, 22}},
		"of a list with something else, all up to the one before it": {"/v1/completions", `{"prompt":[1,22,"a"]}`, []uint32{1, 22}},
		"with media, which come after":                               {"/inference/v1/generate", `{"token_ids":[1,2],"features":{"mm_hashes":{"image":["a"]}}}`, []uint32{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			ids, cause := rig.ids(c.path, c.body)
			require.Empty(t, cause)
			require.Equal(t, c.ids, ids)
		})
	}
	require.Empty(t, rig.questions())
}

// TestItIsSaidWhyIDsAreNotKnown has prompts of which no ids can be known.
func TestItIsSaidWhyIDsAreNotKnown(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	for cause, bodies := range map[string][][2]string{
		badIDs: {
			{"/v1/completions", `{"prompt":[1,-2]}`},
			{"/v1/completions", `{"prompt":[1.5,2]}`},
			{"/v1/completions", `{"prompt":[1,2e3]}`},
			{"/v1/completions", `{"prompt":[4294967296]}`},
			{"/v1/completions", `{"prompt":[1,99999999999999999999999999]}`},
			{"/v1/completions", `{"prompt":[1,,2]}`},
			{"/v1/completions", `{"prompt":[1,2,]}`},
			{"/v1/completions", `{"prompt":[1 2]}`},
			{"/generate", `{"input_ids":[-1]}`},
		},
		extraKey:        {{"/generate", `{"input_ids":[1],"extra_key":"a"}`}, {"/generate", `{"text":"x","extra_key":"a"}`}},
		truncatedPrompt: {{"/v1/completions", `{"prompt":[1,2],"truncate_prompt_tokens":1}`}, {chatPath, `{"truncate_prompt_tokens":-1,` + chatOf(message("user", "x"))[1:]}},
		cutBody:         {{chatPath, `{"messages":[{"role":"user","content":"x"}`}},
		apiNotTokenized: {
			{"/v1/messages", `{"messages":[{"role":"user","content":"x"}]}`}, {"/v1/responses", `{"input":"x"}`}, {"/v1/embeddings", `{"input":"x"}`},
			{"/generate", `{"image_data":"x"}`},
		},
	} {
		for _, c := range bodies {
			ids, why := rig.ids(c[0], c[1])
			require.Equal(t, cause, why, c[1])
			require.Empty(t, ids, c[1])
		}
	}
	require.Empty(t, rig.questions())
}

// TestWithoutATokenizerNobodyIsAsked has one that is switched off.
func TestWithoutATokenizerNobodyIsAsked(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	rig.policy.source = &Tokenizing{Tokenizer: noTokenizing}
	_, cause := rig.chat(1)
	require.Equal(t, noTokenizer, cause)
	ids, cause := rig.ids("/v1/completions", `{"prompt":[1]}`)
	require.Empty(t, cause)
	require.Equal(t, []uint32{1}, ids)
	rig.end()
	require.Empty(t, rig.questions())
}

// TestABodyCutByALimitHasTheIDsThatWereRead has one of which the rest was not read.
func TestABodyCutByALimitHasTheIDsThatWereRead(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	for text, ids := range map[string][]uint32{`{"prompt":[1,22,333`: {1, 22}, `{"prompt":[1,22,`: {1, 22}, `{"prompt":[1`: nil} {
		t1 := &ticket{state: rig.state, owner: rig.policy, body: &body{budget: &rig.state.buffered, data: []byte(text), cut: "max_body"}}
		require.Empty(t, t1.parse("/v1/completions", 1000))
		got, cause := rig.options.promptIDs(t1, nil)
		require.Empty(t, cause)
		require.True(t, slices.Equal(ids, got), text)
	}
}

// TestAnEncodedBodyIsSentAsItCame has a chat and ids that come encoded.
func TestAnEncodedBodyIsSentAsItCame(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	rig.options.remote.timeout = patience
	codings, _ := coding.Parse([]string{"gzip"})
	ask := func(path, text string) (ids []uint32, cause string, sent []byte) {
		sent = encode(t, []byte(text), "gzip")
		t1 := &ticket{state: rig.state, owner: rig.policy, body: &body{budget: &rig.state.buffered, data: sent, whole: true}}
		t1.decoded = decode(t1.body, codings, 1<<20)
		require.Empty(t, t1.parse(path, int64(len(sent))))
		t1.forgetText()
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.Header.Set("Content-Encoding", "gzip")
		ids, cause = rig.options.promptIDs(t1, r)
		return ids, cause, sent
	}
	ids, cause, sent := ask(chatPath, chatOf(message("user", "hello")))
	require.Empty(t, cause)
	require.Equal(t, []uint32{1, 2, 3}, ids)
	require.Equal(t, string(sent), rig.questions()[0].body)
	require.Equal(t, "gzip", rig.questions()[0].header.Get("Content-Encoding"))
	ids, cause, _ = ask("/v1/completions", `{"prompt":[4,5]}`)
	require.Empty(t, cause)
	require.Equal(t, []uint32{4, 5}, ids)
	_, cause, _ = ask("/v1/completions", `{"prompt":"x"}`)
	require.Equal(t, apiNotTokenized, cause)
	require.Len(t, rig.questions(), 1)
}

// TestWhatTellsCachesApart finds the adapter and the salt of prompts.
func TestWhatTellsCachesApart(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	rig.state.adapters.learn("lora-a")
	for body, want := range map[string][2]string{
		`{"prompt":[1],"model":"lora-a","cache_salt":"s"}`:   {"lora-a", "s"},
		`{"prompt":[1],"model":"lora-\u0061"}`:               {"lora-a", ""},
		`{"prompt":[1],"model":"base"}`:                      {"", ""},
		`{"prompt":[1]}`:                                     {"", ""},
		`{"prompt":[1],"model":"base","lora_path":"lora-a"}`: {"lora-a", ""},
		`{"prompt":[1],"lora_path":["lora-b","lora-a"]}`:     {"lora-b", ""},
		`{"prompt":[1],"lora_name":"lora-c"}`:                {"lora-c", ""},
	} {
		n := rig.ticket("/v1/completions", body).scratch.tokens
		require.Equal(t, want, [2]string{n.adapter, n.salt}, body)
	}
}

// TestNothingOfARequestIsLeftInItsScratch gives it back and takes it again.
func TestNothingOfARequestIsLeftInItsScratch(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	t1 := rig.ticket("/v1/completions", `{"prompt":[1,2],"cache_salt":"s","model":"m"}`)
	n := &t1.scratch.tokens
	require.NotEmpty(t, n.ids)
	t1.begun()
	require.Empty(t, n.ids)
	require.Empty(t, n.salt+n.adapter+n.cause)
	require.Equal(t, question{}, n.question)
	large := &tokens{own: make([]uint32, keptIDs+1)}
	large.reset()
	require.Nil(t, large.own)
}

// oneByOne reads a list of ids as a JSON library does.
func oneByOne(list string) (ids []uint32, ok bool) {
	d := json.NewDecoder(strings.NewReader("[" + list + "]"))
	d.UseNumber()
	var numbers []json.Number
	if d.Decode(&numbers) != nil || d.More() || strings.ContainsAny(list, `"n[]`) {
		return nil, false
	}
	for _, n := range numbers {
		id, err := strconv.ParseUint(n.String(), 10, 32)
		if err != nil || strings.HasPrefix(n.String(), "+") {
			return nil, false
		}
		ids = append(ids, uint32(id))
	}
	return ids, true
}

// FuzzIDsAreWhatAJSONLibraryReads compares with one.
func FuzzIDsAreWhatAJSONLibraryReads(f *testing.F) {
	for _, list := range []string{"1,2,3", " 1 , 22 ", "4294967295", "4294967296", "12345678,1234567,99999999,1", "-1", "1.0", "1,,2", ",", "", " ", "1e3", "1,", "00", "\x80", "1\x00"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if strings.Trim(list, " \t\r\n") == "" {
			return // no prompt, so nobody asks
		}
		ids, ok := appendIDs(nil, []byte(list), maxIDs)
		want, valid := oneByOne(list)
		if valid {
			require.True(t, ok, list)
			require.True(t, slices.Equal(want, ids), "%q: %v", list, ids)
		} else if ok { // leading zeros are no JSON, and harmless
			require.Regexp(t, `^[0-9, \t\r\n]*$`, list)
		}
	})
}

// TestIDsOfAnyLengthAreRead has random ones, and every number of digits beside every other.
func TestIDsOfAnyLengthAreRead(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for range 2000 {
		var want []uint32
		var list []byte
		for range 1 + random.IntN(20) {
			id := random.Uint32() >> random.IntN(32)
			want = append(want, id)
			if len(list) > 0 {
				list = append(list, ',')
			}
			list = strconv.AppendUint(append(list, strings.Repeat(" ", random.IntN(9)/8)...), uint64(id), 10)
		}
		ids, ok := appendIDs(nil, list, maxIDs)
		require.True(t, ok)
		require.Equal(t, want, ids, string(list))
	}
}

// TestIDsAreBounded has more than are kept.
func TestIDsAreBounded(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	text := `{"prompt":[` + strings.Repeat("7,", maxIDs+9) + `7]}`
	ids, cause := rig.ids("/v1/completions", text)
	require.Empty(t, cause)
	require.Len(t, ids, maxIDs)
	few, ok := appendIDs(nil, []byte("1,2,3"), 2)
	require.True(t, ok)
	require.Equal(t, []uint32{1, 2}, few)
}

// TestReadingIDsAllocatesNothing, once a request as long has been.
func TestReadingIDsAllocatesNothing(t *testing.T) {
	state := newState()
	owner := &Policy{source: new(Tokenizing)}
	text := []byte(`{"prompt":[` + strings.Repeat("12345,", 1<<14) + `7]}`)
	t1 := &ticket{state: state, owner: owner, body: &body{budget: &state.buffered, data: text, whole: true}, scratch: state.takeScratch()}
	p := &t1.scratch.prompt
	read := func() { t1.readTokens(p, "/v1/completions") }
	prompt.Parse(p, "/v1/completions", text)
	read()
	require.Len(t, t1.scratch.tokens.ids, 1<<14+1)
	requireNoAllocations(t, 10, read)
}

// TestTokenizerOptions parses and checks them.
func TestTokenizerOptions(t *testing.T) {
	parse := func(block string) (Tokenizing, error) {
		k := new(KVAware)
		err := k.UnmarshalCaddyfile(caddyfile.NewTestDispenser("kv_aware {\n" + block + "\n}"))
		return k.Tokenizing, err
	}
	z, err := parse("tokenizer none\ntokenize_timeout 50ms")
	require.NoError(t, err)
	require.Equal(t, Tokenizing{Tokenizer: "none", TokenizeTimeout: caddy.Duration(50e6)}, z)
	require.NoError(t, z.validate("kv_aware"))
	z = Tokenizing{}
	z.provision(new(Policy))
	require.Equal(t, "remote", z.Tokenizer)
	require.Equal(t, caddy.Duration(20e6), z.TokenizeTimeout)
	require.NoError(t, z.validate("kv_aware"))
	for block, words := range map[string]string{
		"tokenizer":                                "tokenizer takes one of remote, none",
		"tokenizer /models/x/tokenizer.json":       "tokenizer takes one of remote, none",
		"tokenizer none\ntokenizer none":           "tokenizer is there twice",
		"tokenize_timeout":                         "tokenize_timeout takes one duration",
		"tokenize_timeout soon":                    "tokenize_timeout 'soon' is not a duration",
		"tokenize_timeout 0s":                      "tokenize_timeout '0s' is not a duration",
		"tokenize_timeout 1s\ntokenize_timeout 1s": "tokenize_timeout is there twice",
	} {
		_, err := parse(block)
		require.ErrorContains(t, err, words, block)
	}
	for _, z := range []Tokenizing{
		{Tokenizer: "x", TokenizeTimeout: 1},
		{Tokenizer: "none", TokenizeTimeout: -1},
		{Tokenizer: "none", TokenizeTimeout: caddy.Duration(maxTokenizeTimeout + 1)},
	} {
		require.ErrorContains(t, z.validate("kv_aware"), "kv_aware: tokeniz")
	}
}

// BenchmarkIDsInABody reads 16,384 ids of a body that is parsed already.
func BenchmarkIDsInABody(b *testing.B) {
	random := rand.New(rand.NewPCG(6, 6))
	var list bytes.Buffer
	for range 1 << 14 {
		fmt.Fprintf(&list, "%d,", random.Uint32N(128_000))
	}
	raw := list.Bytes()[:list.Len()-1]
	ids := make([]uint32, 0, 1<<14)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		var ok bool
		if ids, ok = appendIDs(ids[:0], raw, maxIDs); !ok {
			b.Fatal("no ids")
		}
	}
}
