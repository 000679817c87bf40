package radix

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// chunked is what a Chunker must give, said in the obvious way.
func chunked(prompt []byte, seed uint64) Key {
	if len(prompt) < ChunkBytes {
		if len(prompt) == 0 {
			return Key{}
		}
		return Key{Chunks: []uint64{xxh3.HashSeed(prompt, seed)}, Bytes: len(prompt)}
	}
	var k Key
	for chunk := range slices.Chunk(prompt, ChunkBytes) {
		if len(chunk) == ChunkBytes {
			k.Chunks = append(k.Chunks, xxh3.HashSeed(chunk, seed))
			k.Bytes += ChunkBytes
		}
	}
	return k
}

func random(bytes int) []byte {
	rng := rand.New(rand.NewPCG(3, uint64(bytes)))
	p := make([]byte, bytes)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

func requireKey(t testing.TB, want, got Key) {
	t.Helper()
	require.Equal(t, want.Bytes, got.Bytes)
	require.Equal(t, want.Space, got.Space)
	require.True(t, slices.Equal(want.Chunks, got.Chunks), "%d chunks, want %d, or others", len(got.Chunks), len(want.Chunks))
}

func TestChunkerLeavesOutAPartAtTheEndUnlessItIsAll(t *testing.T) {
	for _, test := range []struct{ written, chunks, covered int }{
		{0, 0, 0},
		{1, 1, 1},
		{127, 1, 127},
		{128, 1, 128},
		{129, 1, 128},
		{255, 1, 128},
		{256, 2, 256},
		{1000, 7, 896},
	} {
		c := NewChunker(5)
		n, err := c.Write(random(test.written))
		require.NoError(t, err)
		require.Equal(t, test.written, n)
		k := c.Key(9)
		require.Len(t, k.Chunks, test.chunks, "%d bytes", test.written)
		require.Equal(t, test.covered, k.Bytes, "%d bytes", test.written)
		require.Equal(t, uint64(9), k.Space)
	}
}

func TestChunkerDoesNotCareHowThePromptIsCut(t *testing.T) {
	prompt := random(1000)
	want := chunked(prompt, 5)
	c := NewChunker(5)
	for size := 1; size <= len(prompt); size++ {
		c.Reset()
		for piece := range slices.Chunk(prompt, size) {
			if size%2 == 0 {
				_, _ = c.Write(piece)
			} else {
				_, _ = c.WriteString(string(piece))
			}
		}
		requireKey(t, want, c.Key(0))
	}
}

func TestChunkerGivesTheKeySoFarAndGoesOn(t *testing.T) {
	prompt := random(300)
	c := NewChunker(5)
	for i := range prompt {
		requireKey(t, chunked(prompt[:i], 5), c.Key(0))
		_, _ = c.Write(prompt[i : i+1])
	}
	requireKey(t, chunked(prompt, 5), c.Key(0))
}

func TestKeysOfDifferentSeedsShareNothing(t *testing.T) {
	prompt := random(10 * ChunkBytes)
	one, two := chunked(prompt, 1), chunked(prompt, 2)
	for _, chunk := range one.Chunks {
		require.NotContains(t, two.Chunks, chunk)
	}
}

func TestChunkerIsBounded(t *testing.T) {
	block := bytes.Repeat([]byte("x"), 1<<20)
	c := NewChunker(5)
	for range maxChunks*ChunkBytes/len(block) + 2 {
		_, _ = c.Write(block)
	}
	require.Len(t, c.Key(0).Chunks, maxChunks)

	c.Reset()
	require.Zero(t, cap(c.chunks), "a very large buffer outlived its prompt")

	_, _ = c.Write(block)
	c.Reset()
	require.NotZero(t, cap(c.chunks), "an ordinary buffer did not")
}

func TestChunkerAllocatesNothingOnceWarm(t *testing.T) {
	prompt := random(16 << 10)
	c := NewChunker(5)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Reset()
		_, _ = c.Write(prompt[:1000])
		_, _ = c.Write(prompt[1000:])
		_ = c.Key(0)
	}))
}

func FuzzChunker(f *testing.F) {
	f.Add([]byte("a short prompt"), []byte{3, 200}, uint64(1))
	f.Add(random(1000), []byte{0, 127, 128, 129, 255}, uint64(0))
	f.Fuzz(func(t *testing.T, prompt, cuts []byte, seed uint64) {
		c := NewChunker(seed)
		rest := prompt
		for i, cut := range cuts {
			n := min(int(cut), len(rest))
			if i%2 == 0 {
				_, _ = c.Write(rest[:n])
			} else {
				_, _ = c.WriteString(string(rest[:n]))
			}
			rest = rest[n:]
		}
		_, _ = c.Write(rest)
		requireKey(t, chunked(prompt, seed), c.Key(0))
	})
}

// TestAConversationThatGoesOnHasTheSameChunksAndMore writes conversations of
// messages of every length, cut into writes at random.
func TestAConversationThatGoesOnHasTheSameChunksAndMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	c := NewChunker(1)
	for range 200 {
		var before []uint64
		var messages [][]byte
		for range 1 + rng.IntN(8) {
			message := make([]byte, rng.IntN(4)*ChunkBytes+rng.IntN(3)*rng.IntN(ChunkBytes))
			for i := range message {
				message[i] = byte(rng.Uint32())
			}
			messages = append(messages, message)
			c.Reset()
			lengths := []int{0} // behind so many chunks
			for _, m := range messages {
				for rest := m; len(rest) > 0; {
					n := 1 + rng.IntN(len(rest))
					_, _ = c.Write(rest[:n])
					rest = rest[n:]
				}
				c.EndMessage()
				for at := ChunkBytes; at < len(m)+ChunkBytes && len(m) > 0; at += ChunkBytes {
					lengths = append(lengths, lengths[len(lengths)-1]+min(ChunkBytes, len(m)-at+ChunkBytes))
				}
			}
			k := c.Key(0)
			require.Len(t, k.Chunks, len(lengths)-1)
			require.True(t, slices.Equal(before, k.Chunks[:len(before)]))
			for chunks, length := range lengths {
				require.Equal(t, length, c.Length(chunks*ChunkBytes))
			}
			before = append([]uint64{}, k.Chunks...)
		}
	}
}

func TestWhereAMessageEndsMatters(t *testing.T) {
	c := NewChunker(1)
	key := func(parts ...string) []uint64 {
		c.Reset()
		for _, p := range parts {
			_, _ = c.WriteString(p)
			c.EndMessage()
		}
		return append([]uint64{}, c.Key(0).Chunks...)
	}
	require.NotEqual(t, key("ab", "c"), key("a", "bc"))
	require.Equal(t, key("ab", "", "c"), key("ab", "c"))
	c.Reset()
	_, _ = c.WriteString("abc")
	c.EndMessage()
	require.Equal(t, 3, c.Key(0).Bytes)
	require.Equal(t, 3, c.Length(3))
}
