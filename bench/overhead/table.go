package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is one in Markdown.
type table struct {
	title string
	head  []string
	lines [][]string
}

func (t *table) add(line ...string) { t.lines = append(t.lines, line) }

// print prints the table with its columns aligned, or nothing if it is empty.
func (t *table) print(to io.Writer) {
	if len(t.lines) == 0 {
		return
	}
	widths := make([]int, len(t.head))
	for _, line := range append([][]string{t.head}, t.lines...) {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	fmt.Fprintf(to, "\n%s\n\n", t.title)
	printLine(to, t.head, widths)
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", max(width, 3))
	}
	printLine(to, rule, widths)
	for _, line := range t.lines {
		printLine(to, line, widths)
	}
}

func printLine(to io.Writer, line []string, widths []int) {
	for i, text := range line {
		fmt.Fprintf(to, "| %-*s ", widths[i], text)
	}
	fmt.Fprintln(to, "|")
}

// missing stands where there is no figure.
const missing = "-"

// number is a figure with three digits that count, or as many as it has before
// the point.
func number(v float64) string {
	decimals := 0
	switch {
	case v == 0:
		return missing
	case math.Abs(v) < 10:
		decimals = 2
	case math.Abs(v) < 100:
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// milli is a figure of µs in ms.
func milli(v float64) string { return number(v / 1000) }

// mebi is bytes in MiB.
func mebi(bytes int64) string { return number(float64(bytes) / (1 << 20)) }

// two is a ratio.
func two(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
