package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// answerAll answers question after question, each into out as a text and into the
// document as Markdown.
func (l *lab) answerAll(ctx context.Context, o options, out, document io.Writer) error {
	begin := time.Now()
	fmt.Fprint(document, o.preface)
	for i, q := range o.questions {
		if len(o.questions) > 1 {
			fmt.Fprintf(os.Stderr, "%d of %d, %s: %s\n", i+1, len(o.questions), time.Since(begin).Round(time.Second), q.title())
		}
		r, err := l.answer(ctx, q, o.metrics)
		if err != nil {
			return err
		}
		if err := r.writeText(out); err != nil {
			return err
		}
		if err := r.writeMarkdown(document); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "It took %s.\n", time.Since(begin).Round(time.Second))
	return err
}
