years <- c(
  Mercury = 0.2408467, Venus = 0.61519726, Earth = 1, Mars = 1.8808158,
  Jupiter = 11.862615, Saturn = 29.447498, Uranus = 84.016846, Neptune = 164.79132
)
input <- scan(file("stdin"), what = list(planet = "", seconds = 0), quiet = TRUE)
age <- input$seconds / 31557600 / years[input$planet]
cat(sprintf("%.8f", age), sep = "\n")
