import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Scanner;

interface Roman {
    Map<Integer, String> NUMERALS = numerals();

    private static Map<Integer, String> numerals() {
        int[] values = {1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1};
        String[] texts = "M CM D CD C XC L XL X IX V IV I".split(" ");
        var result = new LinkedHashMap<Integer, String>();
        for (int i = 0; i < values.length; i++) result.put(values[i], texts[i]);
        return result;
    }

    static String of(int number) {
        var text = new StringBuilder();
        for (var each : NUMERALS.entrySet()) {
            text.append(each.getValue().repeat(number / each.getKey()));
            number %= each.getKey();
        }
        return text.toString();
    }
}

class Program {
    public static void main(String[] args) {
        new Scanner(System.in).useDelimiter("\\R").tokens().map(Integer::valueOf).map(Roman::of).forEach(System.out::println);
    }
}
