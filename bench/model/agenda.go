package model

import (
	"cmp"
	"container/heap"
	"time"
)

// agenda is what happens when, from the start of a replay. What is due at the same
// time happens in the order in which it was written down.
type agenda struct {
	entries entries
	count   int
}

type entry struct {
	at    time.Duration
	order int
	do    func(now time.Duration)
}

func (a *agenda) at(at time.Duration, do func(now time.Duration)) {
	a.count++
	heap.Push(&a.entries, entry{at, a.count, do})
}

func (a *agenda) run() {
	for len(a.entries) > 0 {
		e := heap.Pop(&a.entries).(entry)
		e.do(e.at)
	}
}

// entries are a heap.
type entries []entry

func (e entries) Len() int      { return len(e) }
func (e entries) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *entries) Push(x any)   { *e = append(*e, x.(entry)) }

func (e entries) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].order, e[j].order)) < 0
}

func (e *entries) Pop() any {
	all := *e
	last := all[len(all)-1]
	all[len(all)-1] = entry{}
	*e = all[:len(all)-1]
	return last
}
