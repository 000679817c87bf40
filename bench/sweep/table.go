package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table is what is shown to people.
type table struct {
	title string
	head  []string
	rows  [][]string
}

// title marks the variant that is the product.
func (v variant) title() string {
	if v.current {
		return v.name + " (now)"
	}
	return v.name
}

// writeText writes a report for a terminal.
func (r report) writeText(w io.Writer) error {
	fmt.Fprintf(w, "%s\n", r.title)
	for _, t := range r.tables {
		fmt.Fprintf(w, "\n%s:\n", t.title)
		columns := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
		for _, row := range append([][]string{t.head}, t.rows...) {
			fmt.Fprintf(columns, "%s\t\n", strings.Join(row, "\t"))
		}
		if err := columns.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// writeMarkdown writes a report for a document.
func (r report) writeMarkdown(w io.Writer) error {
	fmt.Fprintf(w, "## %s\n\n", r.title)
	if r.why != "" {
		fmt.Fprintf(w, "%s\n\n", r.why)
	}
	for _, t := range r.tables {
		fmt.Fprintf(w, "%s:\n\n", t.title)
		markdownRow(w, t.head)
		fmt.Fprintf(w, "|---|%s\n", strings.Repeat("---:|", len(t.head)-1))
		for _, row := range t.rows {
			markdownRow(w, row)
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	return nil
}

func markdownRow(w io.Writer, cells []string) {
	for _, cell := range cells {
		fmt.Fprintf(w, "| %s ", strings.ReplaceAll(cell, "|", `\|`))
	}
	fmt.Fprintln(w, "|")
}
