package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
)

// words are those that English has most of, and some longer ones.
var words = strings.Fields(`the of and a to in is you that it he was for on are as with his they at be this
have from or one had by word but not what all were we when your can said there use an each which she do how
their if will up other about out many then them these so some her would make like him into time has look two
more write go see number no way could people my than first water been call who oil its now find long down day
did get come made may part over new sound take only little work know place year live me back give most very
after thing our just name good sentence man think say great where help through much before line right too mean
old any same tell boy follow came want show also around form three small set put end does another well large
must big even such because turn here why ask went men read need land different home us move try kind hand
picture again change off play spell air away animal house point page letter mother answer found study still
learn should world system request function account language question information example because business
government service available following important development interested configuration performance`)

// corpus is a mebibyte of sentences and paragraphs as they stand in JSON strings:
// with the escapes that English has there, line ends and quotes.
var corpus = sync.OnceValue(func() string {
	const size = 1 << 20
	rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same text every time
	var b strings.Builder
	for b.Len() < size {
		sentence(&b, rng)
		if rng.IntN(5) == 0 {
			b.WriteString(`\n\n`)
		}
		b.WriteByte(' ')
	}
	return b.String()
})

// sentence writes a sentence.
func sentence(b *strings.Builder, rng *rand.Rand) {
	n := 5 + rng.IntN(12)
	for i := range n {
		word := words[rng.IntN(len(words))]
		switch {
		case i == 0:
			word = strings.ToUpper(word[:1]) + word[1:]
		case rng.IntN(60) == 0:
			word = `\"` + word + `\"`
		case rng.IntN(12) == 0 && i < n-1:
			word += ","
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word)
	}
	b.WriteByte('.')
}

// author writes texts, no two of which begin alike. Authors that share a serial
// number never write the same.
type author struct {
	rng    *rand.Rand
	serial *atomic.Uint32
}

// newAuthor returns the author with a number of its own.
func newAuthor(number uint64, serial *atomic.Uint32) *author {
	return &author{rng: rand.New(rand.NewPCG(number, 2)), serial: serial} //nolint:gosec // the same texts every time
}

// appendBeginning appends n bytes, at least 12, that begin like no others.
func (a *author) appendBeginning(b []byte, n int) []byte {
	const scatter = 2654435769 // odd, so no two numbers become the same
	before := len(b)
	b = fmt.Appendf(b, "%010d ", a.serial.Add(1)*scatter)
	return a.appendText(b, n-(len(b)-before))
}

// appendText appends n bytes of the corpus.
func (a *author) appendText(b []byte, n int) []byte {
	all := corpus()
	start := a.rng.IntN(len(all) - n - 1024)
	start += strings.IndexByte(all[start:], ' ') + 1
	b = append(b, all[start:start+n]...)
	if n > 0 && b[len(b)-1] == '\\' { // an escape that was cut
		b[len(b)-1] = '.'
	}
	return b
}
