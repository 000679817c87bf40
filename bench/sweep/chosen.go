package main

import "slices"

// preface begins the document of chosen.
const preface = `# What was chosen by measurement

Mean times to first token that the model of ` + "`bench/model`" + ` comes to with other values of what
is a constant in the product; "now" marks the product's. Generated traffic is made several
times, each from another seed: times are means over these, and ± is the standard error of the
difference: one request that goes elsewhere changes all that follow. Made by

` + "```" + `
cd bench && go run ./sweep -all -o FILE
` + "```" + `

`

// chosen is everything that was chosen in this way.
var chosen = slices.Concat(alike, unlike)

// alike are the questions that are asked of engines that are all alike.
var alike = []question{
	{
		constant: "selection.decodeTokens",
		values:   []value{{text: "0"}, {text: "8"}, {text: "16"}, {text: "32"}, {text: "64"}, {text: "256"}, {text: "1024"}},
		why:      "What a request in flight costs the next one, in tokens to prefill. Too little, and requests gather where others decode; too much, and they leave the engine that holds their prompt.",
	},
	{
		constant: "selection.workWeight",
		values:   []value{{text: "1"}, {text: "1.05"}, {text: "1.1"}, {text: "1.25"}, {text: "1.5"}, {text: "2"}},
		why:      "What a token that this request has to compute weighs against one that is queued before it.",
	},
	{
		constant: "selection.spreadShare",
		values:   []value{{text: "0", name: "0: no spread"}, {text: "4"}, {text: "8"}, {text: "16"}, {text: "32"}, {text: "64"}, {text: "1e9", name: "no limit"}},
		why:      "How many tokens may be computed again elsewhere, to have them there too, for each that has to be computed anyway.",
	},
	{
		name: "selection: how spread fades as queues fill",
		file: "selection/cost.go",
		old:  "share *= share\n\treturn share * share",
		values: []value{
			{text: "return min(share+1, 1)", name: "not at all"},
			{text: "return share", name: "share of idle workers"},
			{text: "return share * share", name: "its square"},
			{text: "share *= share\n\treturn share * share", name: "its fourth power"},
			{text: "share *= share\n\tshare *= share\n\treturn share * share", name: "its eighth power"},
		},
		why: "The work of late is weighed by a power of the share of workers without a queue.",
	},
	{
		name: "selection: which of equally good workers is taken",
		file: "selection/cost.go",
		old:  "c.Worker.RecentRequests(now)",
		values: []value{
			{text: "float64(i)", name: "the first"},
			{text: "float64((uint64(now.UnixNano())+uint64(i)*0x9e3779b97f4a7c15)*0xd1342543de82ef95>>11^(uint64(now.UnixNano())*0xbf58476d1ce4e5b9+uint64(i)*0x94d049bb133111eb)>>13)", name: "any, at random"},
			{text: "0", name: "the one with the fewest requests ever"},
			{text: "c.Worker.RecentRequests(now)", name: "the one with the fewest of late"},
		},
		why: "Many are equally good when nothing waits and nobody holds anything.",
	},
	{
		name:   "selection: progress of the oldest prefill",
		file:   "selection/cost.go",
		old:    "min(since.Seconds()*t.Rate, float64(oldest), queued)",
		values: []value{{text: "min(0, since.Seconds(), float64(oldest))", name: "not counted"}, {text: "min(since.Seconds()*t.Rate, float64(oldest), queued)", name: "counted"}},
		why:    "An engine is some way into its oldest prefill; without that, the wait is overstated by half a prompt.",
	},
	{
		constant: "fleet.RecentHalfLife",
		values: []value{
			{text: "15 * time.Second", name: "15 s"},
			{text: "30 * time.Second", name: "30 s"},
			{text: "time.Minute", name: "1 min"},
			{text: "2 * time.Minute", name: "2 min"},
			{text: "5 * time.Minute", name: "5 min"},
		},
		why: "After how long a request counts half in the work of late.",
	},
	{
		constant: "fleet.maxRecent",
		values:   []value{{text: "2 << 10"}, {text: "8 << 10"}, {text: "32 << 10"}, {text: "128 << 10"}},
		why:      "The most that one request adds to the work of late, in tokens.",
	},
	{
		constant: "radix.DefaultRewrite",
		values:   []value{{text: "0"}, {text: "512"}, {text: "2 << 10"}, {text: "8 << 10"}, {text: "32 << 10"}},
		why:      "The bytes at the end of a prompt that the next turn of the same conversation may have changed.",
	},
	{
		flag:   "belief",
		values: []value{{text: "0.5"}, {text: "0.75"}, {text: "1.5"}, {text: "0", name: "no limit"}},
		why:    "How much an engine is believed to hold, as a share of its KV cache; the default is 1.",
	},
	{
		constant: "radix.ChunkBytes",
		values:   []value{{text: "32"}, {text: "64"}, {text: "128"}, {text: "256"}},
		why:      "The length of prompt behind one fingerprint, of which the end of a match is lost. More than 256 is not possible.",
	},
	{
		constant: "radix.ChunkBytes",
		name:     "radix.ChunkBytes: speed of the tree",
		values:   []value{{text: "32"}, {text: "64"}, {text: "128"}, {text: "256"}},
		why:      "Chunking, matching and inserting one prompt. These figures depend on the machine.",
		how:      &benchmarks{pkg: "radix", pattern: "^BenchmarkRoute$/16KiB/english/./^workers=4$", time: "0.2s", count: 5},
	},
}
