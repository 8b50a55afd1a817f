import java.util.*;

public class Dominoes {
    private record Stone(int a, int b) {
        static Stone parse(String text) {
            return new Stone(Character.digit(text.charAt(0), 10), Character.digit(text.charAt(2), 10));
        }
    }

    private static boolean hasChain(int first, int last, List<Stone> stones) {
        if (stones.isEmpty()) return first == last;
        for (int i = 0; i < stones.size(); i++) {
            var rest = new ArrayList<>(stones);
            var stone = rest.remove(i);
            if (stone.a() == last && hasChain(first, stone.b(), rest)) return true;
            if (stone.b() == last && hasChain(first, stone.a(), rest)) return true;
        }
        return false;
    }

    public static void main(String[] args) {
        var input = new Scanner(System.in);
        while (input.hasNextLine()) {
            var stones = Arrays.stream(input.nextLine().split(" ")).map(Stone::parse).toList();
            var start = stones.get(0);
            System.out.println(hasChain(start.a(), start.b(), stones.subList(1, stones.size())) ? "yes" : "no");
        }
    }
}
