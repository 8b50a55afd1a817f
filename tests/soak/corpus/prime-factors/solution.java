import java.util.Scanner;
import java.util.StringJoiner;

public final class Main {
    public static void main(String... args) {
        Scanner input = new Scanner(System.in);
        while (input.hasNextLong()) {
            long n = input.nextLong();
            StringJoiner found = new StringJoiner(" ");
            for (long d = 2; d * d <= n; d++) {
                for (; n % d == 0; n /= d) found.add(Long.toString(d));
            }
            if (n > 1) found.add(String.valueOf(n));
            System.out.println(found);
        }
    }
}
