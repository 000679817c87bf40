package trace

import "strings"

// vocabulary is what texts are made of: 128 words of three letters, common enough
// to be one token in most tokenizers, with the space before them. In package
// enginesim's every one of them is.
const vocabulary = `
	act add age ago aid aim air all and any app are arm art ask bad
	bag bar bay bed big bit box bus but buy can cap car cat cup cut
	day did dog dry due ear eat egg end eye fan far fee few fit fix
	fly for fun gap get had has hat her him his hot how ice its job
	key law lay led let lot low man map may men mid mix net new
	nor not now odd off oil old one our out own pay pen per pop put
	ray run say sea see set she sit six sky son sun tax tea ten the
	tip too top try two use via war was way web who why win yes yet you`

const (
	wordBytes  = 4 // a space and three letters
	blockBytes = BlockTokens * wordBytes
)

// words are those of the vocabulary as they stand in a text.
var words = func() (table [128][wordBytes]byte) {
	for i, word := range strings.Fields(vocabulary) {
		copy(table[i][:], " "+word)
	}
	return table
}()

// fill writes the text that an id stands for.
func fill(text *[blockBytes]byte, id uint64) {
	const each = 8 // words from one random number
	state := mix(id)
	for at := 0; at < blockBytes; at += each * wordBytes {
		state += 0x9e3779b97f4a7c15
		bits := mix(state)
		some := text[at : at+each*wordBytes]
		for i := 0; i < len(some); i += wordBytes {
			*(*[wordBytes]byte)(some[i:]) = words[bits%uint64(len(words))]
			bits >>= 8
		}
	}
}

// mix makes a number random: SplitMix64's way. Ids that follow each other have
// nothing in common after it.
func mix(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}
