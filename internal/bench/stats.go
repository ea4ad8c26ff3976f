package bench

import (
	"math"
	"slices"
)

// Summary describes samples by what most of them reach. For times and sizes
// the best is the lowest, for rates the highest; the percentiles go from the
// best towards the worst, so the p95 is what 95 of 100 samples are at least as
// good as.
type Summary struct {
	N     int     `json:"n"`
	Best  float64 `json:"best"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Worst float64 `json:"worst"`
	// Spread is how many times worse the p95 is than the p50; 0 when there
	// are too few samples to tell.
	Spread float64 `json:"spread"`
	// Noisy says that the spread is so large that the machine was measured
	// more than the program.
	Noisy bool `json:"noisy"`
}

const (
	fewSamples  = 5   // below this a spread says nothing
	noisySpread = 1.5 // from here on it says that something else was going on
)

// summarize describes samples without changing them.
func summarize(samples []float64, higherIsBetter bool) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(samples))
	if higherIsBetter {
		slices.Reverse(s)
	}
	out := Summary{
		N: len(s), Best: s[0], Worst: s[len(s)-1],
		P50: percentile(s, 50), P95: percentile(s, 95), P99: percentile(s, 99),
	}
	if better, worse := min(out.P50, out.P95), max(out.P50, out.P95); out.N >= fewSamples && better > 0 {
		out.Spread = worse / better
		out.Noisy = out.Spread >= noisySpread
	}
	return out
}

// percentile is the sample that p of 100 are at least as good as: always one
// that was seen, never a value in between. s is sorted and not empty.
func percentile(s []float64, p int) float64 {
	rank := int(math.Ceil(float64(len(s)*p) / 100))
	return s[max(rank, 1)-1]
}

// mean is the average of samples, of which there is one at least.
func mean(samples []float64) float64 {
	sum := 0.0
	for _, v := range samples {
		sum += v
	}
	return sum / float64(len(samples))
}
