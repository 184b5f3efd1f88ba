package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// When progress first appears, and how often it is redrawn.
const (
	progressFrom  = time.Second
	progressEvery = 200 * time.Millisecond
)

// meter shows the progress of a task on a terminal if the task takes longer than a second: how much
// is done, and the remaining time. Without a known total it shows the elapsed time. A nil meter
// shows nothing.
type meter struct {
	a    *app
	what string
	size bool // counts bytes

	lock        sync.Mutex
	done, total int64
	bar         *progressbar.ProgressBar
	stop        chan struct{}
	stopped     sync.WaitGroup
}

// meter returns a meter for a task; nil if a.err is not a terminal. The caller must call end before
// it writes other text.
func (a *app) meter(what string) *meter {
	if !isTerminal(a.err) {
		return nil
	}
	p := &meter{a: a, what: what, stop: make(chan struct{})}
	a.shown.Store(p)
	p.stopped.Go(p.run)
	return p
}

// bytes makes the meter count bytes.
func (p *meter) bytes() *meter {
	if p != nil {
		p.size = true
	}
	return p
}

// set sets the progress; a total of 0 means that it is not known.
func (p *meter) set(done, total int64) {
	if p == nil {
		return
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.done, p.total = done, total
}

// label names the task.
func (p *meter) label(what string) {
	if p == nil {
		return
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.what = what
}

// end removes the display. It may be called more than once.
func (p *meter) end() {
	if p == nil {
		return
	}
	p.lock.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.lock.Unlock()
	p.stopped.Wait()
}

func (p *meter) run() {
	start := time.Now()
	defer p.clear()
	wait := progressFrom
	for {
		select {
		case <-p.stop:
			return
		case <-time.After(wait):
			wait = progressEvery
			p.draw(time.Since(start))
		}
	}
}

// clear removes the display from the screen until it is drawn again.
func (p *meter) clear() {
	if p == nil {
		return
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear() // an error of the bar must not stop the task
	}
}

func (p *meter) draw(since time.Duration) {
	p.lock.Lock()
	defer p.lock.Unlock()
	done, total := p.done, p.total
	if p.bar == nil || total > 0 != (p.bar.GetMax64() > 0) {
		options := []progressbar.Option{
			progressbar.OptionSetWriter(p.a.err),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetElapsedTime(false),
		}
		if p.size {
			options = append(options, progressbar.OptionShowBytes(true),
				progressbar.OptionShowTotalBytes(true))
		} else if total > 0 {
			options = append(options, progressbar.OptionShowCount())
		}
		if p.bar != nil {
			_ = p.bar.Clear()
		}
		if total <= 0 {
			total = -1
		}
		p.bar = progressbar.NewOptions64(total, options...)
	}
	if total <= 0 {
		p.bar.Describe(fmt.Sprintf("%s, %s so far", p.what, since.Round(time.Second)))
		_ = p.bar.Add(0)
		return
	}
	text := p.what
	if done > 0 {
		left := time.Duration(float64(since) * float64(total-done) / float64(done))
		text += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	p.bar.ChangeMax64(total)
	p.bar.Describe(text)
	_ = p.bar.Set64(min(done, total-1)) // a full bar would disappear
}
