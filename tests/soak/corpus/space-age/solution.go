package main

import "fmt"

var years = map[string]float64{
	"Mercury": 0.2408467,
	"Venus":   0.61519726,
	"Earth":   1,
	"Mars":    1.8808158,
	"Jupiter": 11.862615,
	"Saturn":  29.447498,
	"Uranus":  84.016846,
	"Neptune": 164.79132,
}

func main() {
	var planet string
	var seconds float64
	for {
		if _, err := fmt.Scanln(&planet, &seconds); err != nil {
			return
		}
		fmt.Println(seconds / 31557600 / years[planet])
	}
}
