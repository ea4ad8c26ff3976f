package bench

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSummarize(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for name, c := range map[string]struct {
		samples []float64
		higher  bool
		want    Summary
	}{
		"nothing":      {nil, false, Summary{}},
		"one":          {[]float64{7}, false, Summary{N: 1, Best: 7, P50: 7, P95: 7, P99: 7, Worst: 7}},
		"too few":      {[]float64{1, 100, 2, 1}, false, Summary{N: 4, Best: 1, P50: 1, P95: 100, P99: 100, Worst: 100}},
		"1 to 100":     {hundred, false, Summary{N: 100, Best: 1, P50: 50, P95: 95, P99: 99, Worst: 100, Spread: 1.9, Noisy: true}},
		"rates":        {hundred, true, Summary{N: 100, Best: 100, P50: 51, P95: 6, P99: 2, Worst: 1, Spread: 8.5, Noisy: true}},
		"calm":         {[]float64{10, 11, 10, 12, 10}, false, Summary{N: 5, Best: 10, P50: 10, P95: 12, P99: 12, Worst: 12, Spread: 1.2}},
		"noisy at 1.5": {[]float64{10, 10, 10, 10, 15}, false, Summary{N: 5, Best: 10, P50: 10, P95: 15, P99: 15, Worst: 15, Spread: 1.5, Noisy: true}},
		"a rate of 0":  {[]float64{5, 5, 5, 5, 0}, true, Summary{N: 5, Best: 5, P50: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summarize(c.samples, c.higher)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSummaryHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Float64Range(0.001, 1e6), 1, 300).Draw(t, "samples")
		higher := rapid.Bool().Draw(t, "higher")
		before := slices.Clone(samples)
		s := summarize(samples, higher)
		if !slices.Equal(before, samples) {
			t.Fatal("the samples were changed")
		}
		if shuffled := rapid.Permutation(samples).Draw(t, "shuffled"); summarize(shuffled, higher) != s {
			t.Fatal("the order of the samples counts")
		}
		asGood := func(a, b float64) bool { return higher && a >= b || !higher && a <= b }
		steps := []float64{s.Best, s.P50, s.P95, s.P99, s.Worst}
		for i, v := range steps {
			if !slices.Contains(samples, v) {
				t.Fatalf("%v was never seen", v)
			}
			if i > 0 && !asGood(steps[i-1], v) {
				t.Fatalf("not from the best to the worst: %v", steps)
			}
		}
		for p, v := range map[int]float64{50: s.P50, 95: s.P95, 99: s.P99} {
			reach := 0
			for _, x := range samples {
				if asGood(x, v) {
					reach++
				}
			}
			if reach*100 < p*len(samples) {
				t.Fatalf("only %d of %d are as good as the p%d", reach, len(samples), p)
			}
		}
		switch {
		case len(samples) < fewSamples && (s.Spread != 0 || s.Noisy):
			t.Fatalf("a spread of %v from %d samples", s.Spread, len(samples))
		case len(samples) >= fewSamples && (s.Spread < 1 || math.IsInf(s.Spread, 0)):
			t.Fatalf("a spread of %v", s.Spread)
		case s.Noisy != (s.Spread >= noisySpread):
			t.Fatalf("noisy is %v at a spread of %v", s.Noisy, s.Spread)
		}
	})
}
