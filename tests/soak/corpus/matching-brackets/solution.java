import java.util.ArrayDeque;
import java.util.Scanner;

public class Brackets {
    private static boolean isPaired(String line) {
        var stack = new ArrayDeque<Character>();
        boolean good = true;
        for (char c : line.toCharArray()) {
            switch (c) {
                case '(' -> stack.push(')');
                case '[' -> stack.push(']');
                case '{' -> stack.push('}');
                case ')', ']', '}' -> good = good && !stack.isEmpty() && stack.pop() == c;
                default -> { }
            }
        }
        return good && stack.isEmpty();
    }

    public static void main(String[] args) {
        var input = new Scanner(System.in);
        while (input.hasNextLine()) {
            System.out.println(isPaired(input.nextLine()) ? "yes" : "no");
        }
    }
}
