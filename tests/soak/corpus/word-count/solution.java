import java.util.Scanner;
import java.util.TreeMap;
import java.util.regex.Pattern;

public class Main {
    public static void main(String[] args) {
        var counts = new TreeMap<String, Integer>();
        var word = Pattern.compile("[a-z0-9]+(?:'[a-z]+)*");
        var input = new Scanner(System.in);
        while (input.hasNextLine()) {
            word.matcher(input.nextLine().toLowerCase()).results().forEach(found -> counts.merge(found.group(), 1, Integer::sum));
        }
        counts.forEach((each, count) -> System.out.println(each + " " + count));
    }
}
