// Command virtual stands for the real one in tests.
package main

import (
	"encoding/json"
	"flag"
	"os"
	"strconv"
	"strings"

	"github.com/caddy-inference/caddy-inference/bench/sweep/testdata/fake"
)

func main() {
	trace := flag.String("trace", "", "")
	capacity := flag.String("capacity", "", "")
	belief := flag.Float64("belief", 1, "")
	noise := flag.Float64("noise", 0, "")
	seed := flag.Float64("seed", 1, "")
	flag.Bool("json", false, "")
	flag.Parse()
	var rows []map[string]any
	for t := range strings.SplitSeq(*trace, ",") {
		for c := range strings.SplitSeq(*capacity, ",") {
			tokens, err := strconv.Atoi(c)
			if err != nil {
				panic(err)
			}
			rows = append(rows, map[string]any{
				"trace": t, "capacity": tokens, "ttft_mean": fake.Slow()**belief + *noise + *seed/100, "p99": 9, "hit": 0.5, "busiest": 1.25,
			})
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(rows); err != nil {
		panic(err)
	}
}
