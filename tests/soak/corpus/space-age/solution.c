#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    double years;
} planets[] = {
    {"Mercury", 0.2408467}, {"Venus", 0.61519726}, {"Earth", 1},           {"Mars", 1.8808158},
    {"Jupiter", 11.862615}, {"Saturn", 29.447498}, {"Uranus", 84.016846}, {"Neptune", 164.79132},
};

static double years_of(const char *name) {
    for (size_t i = 0; i < sizeof planets / sizeof *planets; ++i)
        if (!strcmp(planets[i].name, name)) return planets[i].years;
    exit(EXIT_FAILURE);
}

int main(void) {
    char name[16];
    double seconds;
    while (scanf("%15s %lf", name, &seconds) == 2) printf("%.10g\n", seconds / 31557600 / years_of(name));
    return 0;
}
