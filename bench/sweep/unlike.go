package main

// unlike are the questions that have no answer where engines are all alike: those
// of how fast each is learned to be, and of what is made of it.
var unlike = onEach(fleets, []question{
	{
		constant: "selection.rateNoise",
		values: []value{
			{text: "1"}, {text: "1.1"}, {text: "1.25"}, {text: "1.5"}, {text: "2"}, {text: "3"},
			{text: "1e9", name: "any: all are taken to be equally fast"},
		},
		why: "The ratio within which two rates are taken to be the same.",
	},
	{
		constant: "selection.slowest",
		values:   []value{{text: "1.0 / 2"}, {text: "1.0 / 4"}, {text: "1.0 / 8"}, {text: "1.0 / 16"}},
		why:      "The least share of the fastest rate that is reckoned with.",
	},
	{
		constant: "fleet.rateLife",
		values: []value{
			{text: "15 * time.Second", name: "15 s"},
			{text: "time.Minute", name: "1 min"},
			{text: "5 * time.Minute", name: "5 min"},
			{text: "time.Hour", name: "1 h"},
		},
		why: "How long a rate is believed without another sample. Forgotten too soon, a slow engine is tried again and again; too late, and one that is slow no more is left idle, which is not seen here: speeds do not change.",
	},
	{
		constant: "fleet.sampleKeep",
		values:   []value{{text: "0.5"}, {text: "0.8"}, {text: "0.9"}, {text: "0.95"}, {text: "0.98"}},
		why:      "What each sample leaves of the ones before. The more, the less an engine's luck counts for its speed. What a long memory costs when a speed changes is not seen here.",
	},
	{
		constant: "fleet.minSamples",
		values:   []value{{text: "1"}, {text: "2"}, {text: "4"}, {text: "8"}, {text: "16"}},
		why:      "The number of requests that make a rate.",
	},
})

// fleet is engines that are not all alike.
type fleet struct {
	flags []string // of virtual
	words string
}

var fleets = []fleet{
	{[]string{"-noise", "0.1"}, "Engines are equally fast, and the time of a prefill varies by a tenth."},
	{[]string{"-noise", "0.3"}, "Engines are equally fast, and the time of a prefill varies by three tenths."},
	{[]string{"-speeds", "1,1,1,1,1,1,1,0.9", "-noise", "0.1"}, "One engine of eight is a tenth slower."},
	{[]string{"-speeds", "1,1,1,1,1,1,1,0.5", "-noise", "0.1"}, "One engine of eight is half as fast."},
	{[]string{"-speeds", "1,1,1,1,1,1,1,0.25", "-noise", "0.1"}, "One engine of eight is a quarter as fast."},
}

// onEach asks each question of each fleet.
func onEach(fleets []fleet, questions []question) (all []question) {
	for _, q := range questions {
		for _, f := range fleets {
			one := q
			one.flags, one.why = f.flags, q.why+" "+f.words
			all = append(all, one)
		}
	}
	return all
}
