package main

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// writeCharts draws means.svg, the mean of every scenario and router, and for each
// scenario distribution-NAME.svg.
func (r *report) writeCharts(dir string) error {
	if err := r.drawMeans(filepath.Join(dir, "means.svg")); err != nil {
		return fmt.Errorf("drawing means: %w", err)
	}
	for _, s := range r.Scenarios {
		if err := r.drawDistribution(s, filepath.Join(dir, "distribution-"+s.Name+".svg")); err != nil {
			return fmt.Errorf("drawing %s: %w", s.Name, err)
		}
	}
	return nil
}

// ttft is the time to the first token that routing is judged by: at the engine if
// it is known there. It is nil if every request has failed.
func (r *result) ttft() *times {
	if r.Engine == nil {
		return r.Client
	}
	return r.Engine
}

// drawMeans draws a group of bars for each scenario, in which the first router's
// mean is 1: scenarios differ too much for one axis in seconds.
func (r *report) drawMeans(file string) error {
	p := plot.New()
	p.Title.Text = "Mean time to first token, of the first router's"
	p.Y.Min = 0
	p.Legend.Top = true
	routers := r.routers()
	width := vg.Points(60 / float64(max(len(routers), 1)))
	for i, name := range routers {
		values := make(plotter.Values, len(r.Scenarios))
		for j, s := range r.Scenarios {
			first, this := r.find(s.Name, routers[0]), r.find(s.Name, name)
			if first != nil && this != nil && first.ttft() != nil && this.ttft() != nil {
				values[j] = this.ttft().Mean / max(first.ttft().Mean, shortest)
			}
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		bars.Color = plotutil.Color(i)
		bars.LineStyle.Width = 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(routers)-1)/2)
		p.Add(bars)
		p.Legend.Add(name, bars)
	}
	var names []string
	for _, s := range r.Scenarios {
		names = append(names, s.Name)
	}
	p.NominalX(names...)
	return p.Save(vg.Points(120)*vg.Length(len(names)+1), vg.Points(300), file)
}

// drawDistribution draws which share of the requests had its first token by when.
func (r *report) drawDistribution(s scenario, file string) error {
	p := plot.New()
	p.Title.Text = s.Name
	p.X.Label.Text = "time to first token, seconds"
	p.Y.Label.Text = "share of requests, percent"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	least, most := math.Inf(1), 0.0
	for i, name := range r.routers() {
		result := r.find(s.Name, name)
		if result == nil || result.ttft() == nil {
			continue
		}
		points := distribution(result.ttft())
		least, most = min(least, points[0].X), max(most, points[len(points)-1].X)
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(name, line)
	}
	if most == 0 { // everything has failed
		return nil
	}
	p.X.Min, p.X.Max = least/1.5, most*1.5 // equal times, too, need a scale
	return p.Save(vg.Points(460), vg.Points(300), file)
}

// shortest is the least time that a chart tells apart, in seconds.
const shortest = 0.001

func distribution(t *times) plotter.XYs {
	points := make(plotter.XYs, 0, len(t.All))
	for i, v := range t.All {
		points = append(points, plotter.XY{X: max(v, shortest), Y: float64(i + 1)})
	}
	return points
}

// routers are the names of all routers that were played through, in order.
func (r *report) routers() (names []string) {
	for i := range r.Results {
		name := r.Results[i].Router
		if !slices.Contains(names, name) && !strings.HasSuffix(name, inVirtualTime) {
			names = append(names, name)
		}
	}
	return names
}

func (r *report) find(scenario, router string) *result {
	for i := range r.Results {
		if r.Results[i].Scenario == scenario && r.Results[i].Router == router {
			return &r.Results[i]
		}
	}
	return nil
}
