package main

import (
	"context"
	"slices"
	"strings"
)

// question is what is asked: which of these values is best? It is asked of a
// constant, of a text in a file, or of a flag of virtual.
type question struct {
	constant  string // package and name, as in selection.decodeTokens
	file, old string // path inside the product, and a text that stands in it once
	flag      string // name, without the dash
	values    []value
	flags     []string // of virtual, for this question only

	name string      // in words; what it is asked of, if empty
	why  string      // what the answer depends on, for the document
	how  *benchmarks // what is measured; if nil, traffic is replayed
}

// value is a text to try.
type value struct {
	text string
	name string // in words; the text, if empty
}

// variant is the product with one of the values.
type variant struct {
	name    string
	current bool   // the product as it is
	file    string // that is changed; empty if none is
	source  []byte // that it has then
	flags   []string
}

// key tells variants apart that do not do the same.
func (v variant) key() string {
	return strings.Join(append([]string{v.file, string(v.source)}, v.flags...), "\x00")
}

// title returns what the question is asked of, and under which conditions.
func (q question) title() string {
	if len(q.flags) == 0 {
		return q.subject()
	}
	return q.subject() + ", with " + strings.Join(q.flags, " ")
}

// subject returns what the question is asked of.
func (q question) subject() string {
	switch {
	case q.name != "":
		return q.name
	case q.constant != "":
		return q.constant
	case q.flag != "":
		return "-" + q.flag
	}
	return q.file + ": " + oneLine(q.old)
}

// variants returns the product with each of the values. The one it has is always
// among them.
func (q question) variants(ctx context.Context, module string) ([]variant, error) {
	if q.flag != "" {
		return q.flagVariants(), nil
	}
	where, err := q.place(ctx, module)
	if err != nil {
		return nil, err
	}
	variants := make([]variant, 0, len(q.values)+1)
	for _, val := range q.values {
		v := variant{name: val.title(), current: same(val.text, where.text()), flags: q.flags}
		if !v.current {
			v.file, v.source = where.file, where.with(val.text)
		}
		variants = append(variants, v)
	}
	if !slices.ContainsFunc(variants, func(v variant) bool { return v.current }) {
		now := variant{name: value{text: where.text()}.title(), current: true, flags: q.flags}
		variants = slices.Insert(variants, 0, now)
	}
	return variants, nil
}

func (q question) place(ctx context.Context, module string) (place, error) {
	if q.constant != "" {
		return constantPlace(ctx, module, q.constant)
	}
	return textPlace(ctx, module, q.file, q.old)
}

func (q question) flagVariants() []variant {
	variants := []variant{{name: "default", current: true, flags: q.flags}}
	for _, val := range q.values {
		variants = append(variants, variant{name: val.title(), flags: slices.Concat(q.flags, []string{"-" + q.flag, val.text})})
	}
	return variants
}

// title returns how a table calls the value.
func (v value) title() string {
	const most = 48
	if v.name != "" {
		return v.name
	}
	if runes := []rune(oneLine(v.text)); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return oneLine(v.text)
}

// oneLine returns a text with single spaces between its words.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
