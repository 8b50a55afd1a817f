import java.util.Locale;
import java.util.Scanner;

public class SpaceAge {
    enum Planet {
        MERCURY(0.2408467), VENUS(0.61519726), EARTH(1), MARS(1.8808158), JUPITER(11.862615), SATURN(29.447498), URANUS(84.016846), NEPTUNE(164.79132);

        private static final double EARTH_YEAR_S = 31_557_600;
        private final double years;

        Planet(double years) {
            this.years = years;
        }

        double age(double seconds) {
            return seconds / EARTH_YEAR_S / years;
        }
    }

    public static void main(String[] args) {
        try (var input = new Scanner(System.in)) {
            while (input.hasNext()) {
                var planet = Planet.valueOf(input.next().toUpperCase(Locale.ROOT));
                System.out.printf(Locale.ROOT, "%.6f%n", planet.age(input.nextDouble()));
            }
        }
    }
}
