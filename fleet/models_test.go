package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRatioIsLearnedForEachModel(t *testing.T) {
	var m Models
	require.InDelta(t, DefaultRatio, m.Get([]byte("a")).Ratio(), 0)
	require.Equal(t, 250, m.Get([]byte("a")).Tokens(1000))

	a, b := m.Admit("a"), m.Admit("b")
	for range 100 {
		m.Learn(a, 3000, 3300, 1000)
		m.Learn(b, 6000, 6600, 1000)
	}
	require.InDelta(t, 3, a.Ratio(), 0.01)
	require.InDelta(t, 6, b.Ratio(), 0.01)
	require.InDelta(t, 4.95, m.StoredRatio(), 0.1)
	require.Equal(t, 1000, m.Get([]byte("a")).Tokens(3000))
	require.InDelta(t, DefaultRatio, m.Get([]byte("c")).Ratio(), 0)
}

func TestRatioFollowsWhatPromptsAreMadeOf(t *testing.T) {
	var m Models
	a := m.Admit("a")
	for range 1000 {
		m.Learn(a, 40_000, 40_000, 10_000)
	}
	for range 1000 {
		m.Learn(a, 40_000, 40_000, 20_000)
	}
	require.InDelta(t, 2, a.Ratio(), 0.05)
}

func TestRatioIgnoresAnswersThatCannotBeAboutText(t *testing.T) {
	var m Models
	a := m.Admit("a")
	m.Learn(a, 0, 0, 100)
	m.Learn(a, 1000, 1000, 0)
	m.Learn(a, minLearnedText-1, minLearnedText-1, 200)
	m.Learn(a, -1, -1, -1)
	m.Learn(a, 1000, 1000, 1_000_000)
	m.Learn(a, 1_000_000, 1_000_000, 1)
	require.InDelta(t, DefaultRatio, a.Ratio(), 0)
}

func TestModelsAreBounded(t *testing.T) {
	var m Models
	require.Equal(t, OtherModels, m.Get([]byte("model-1")).Name())
	for i := range 2 * MaxModels {
		name := fmt.Sprintf("model-%d", i)
		model := m.Admit(name)
		require.Same(t, model, m.Admit(name))
		require.Same(t, model, m.Get([]byte(name)))
		if i < MaxModels {
			require.Equal(t, name, model.Name())
			require.True(t, model.Known())
		} else {
			require.Equal(t, OtherModels, model.Name())
			require.False(t, model.Known())
		}
	}
	require.Equal(t, MaxModels, m.Len())
}

func TestOnlyNamesThatCanBeShownAreKnown(t *testing.T) {
	var m Models
	for _, name := range []string{"", "\xff\xfe", "\xed\xa0\x80", strings.Repeat("a", MaxModelName+1)} {
		require.Equal(t, OtherModels, m.Admit(name).Name())
	}
	require.Zero(t, m.Len())
	require.True(t, m.Admit(strings.Repeat("a", MaxModelName)).Known())
	require.True(t, m.Admit("模型").Known())
}

func TestModelsAreAdmittedOnceByMany(t *testing.T) {
	var m Models
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			for i := range MaxModels {
				m.Learn(m.Admit(fmt.Sprint(i)), 4000, 4000, 1000)
			}
		})
	}
	wait.Wait()
	require.Equal(t, MaxModels, m.Len())
}

func TestLookingUpAModelAllocatesNothing(t *testing.T) {
	var m Models
	m.Admit("meta-llama/Llama-3.1-8B-Instruct")
	name := []byte("meta-llama/Llama-3.1-8B-Instruct")
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Get(name).Tokens(1000) }))
}
