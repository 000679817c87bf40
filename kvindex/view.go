package kvindex

// view is what a lookup must know of the workers. It never changes: a new one
// takes its place.
type view struct {
	generations []uint32 // by slot
	caches      []uint64 // by slot
	sizes       []sizeView
	reuses      uint64
}

// sizeView are the workers whose blocks have one size.
type sizeView struct {
	size    int
	workers []workerView
	words   []laneMask   // the lanes that say what is rooted on the device
	windows []windowView // what else some workers need
}

type workerView struct {
	slot    int
	full    [tiers]lane
	lower   bool // has blocks in lower tiers
	partial bool // has groups with windows and none of full attention
	slide   lane
	window  int // blocks; 0 is none
}

// windowView are the lanes of one word that need the same window.
type windowView struct {
	word   int
	window int
	bits   uint64
}

// unsized is the block size for what is expected of workers that did not send
// events yet, in tokens.
const unsized = 16

// publish makes a new view.
func (x *Index) publish() {
	v := &view{
		generations: make([]uint32, len(x.workers)),
		caches:      make([]uint64, len(x.workers)),
		reuses:      x.reuses.Load(),
	}
	for _, w := range x.workers {
		if !w.live {
			continue
		}
		v.generations[w.slot], v.caches[w.slot] = w.generation, w.cache
		if w.blind == "" {
			v.add(w)
		}
	}
	x.view.Store(v)
}

func (v *view) add(w *worker) {
	size := w.size
	if size == 0 {
		size = unsized
	}
	s := v.sized(size)
	wv := workerView{slot: w.slot, full: w.full, slide: w.slide, window: w.window()}
	wv.partial = w.kind(false) == 0
	wv.lower = wv.window == 0 && !w.plain && w.full != noLanes
	s.workers = append(s.workers, wv)
	if w.full[Device] != noLane {
		s.rooted(w.full[Device])
	}
	if wv.window > 0 && w.slide != noLane {
		s.windowed(w.slide, wv.window)
	}
}

func (v *view) sized(size int) *sizeView {
	for i := range v.sizes {
		if v.sizes[i].size == size {
			return &v.sizes[i]
		}
	}
	v.sizes = append(v.sizes, sizeView{size: size})
	return &v.sizes[len(v.sizes)-1]
}

func (s *sizeView) rooted(l lane) {
	for i := range s.words {
		if s.words[i].word == l.word() {
			s.words[i].bits |= l.bit()
			return
		}
	}
	s.words = append(s.words, laneMask{l.word(), l.bit()})
}

func (s *sizeView) windowed(l lane, window int) {
	for i := range s.windows {
		if w := &s.windows[i]; w.word == l.word() && w.window == window {
			w.bits |= l.bit()
			return
		}
	}
	s.windows = append(s.windows, windowView{l.word(), window, l.bit()})
}
