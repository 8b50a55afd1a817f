import java.util.BitSet;
import java.util.Scanner;

class Sieve {
    public static void main(String[] args) {
        int n = new Scanner(System.in).nextInt();
        var composite = new BitSet(n + 1);
        var lines = new StringBuilder();
        int count = 0;
        long sum = 0;
        for (int p = 2; p <= n; p++) {
            if (composite.get(p)) continue;
            lines.append(p).append('\n');
            count++;
            sum += p;
            for (long m = (long) p * p; m <= n; m += p) composite.set((int) m);
        }
        System.out.print(lines);
        System.out.printf("%d %d%n", count, sum);
    }
}
