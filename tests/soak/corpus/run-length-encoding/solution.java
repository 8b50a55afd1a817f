import java.io.*;
import java.util.regex.*;

public class RunLength {
    private static final Pattern RUN = Pattern.compile("(.)\\1*");
    private static final Pattern ENCODED = Pattern.compile("(\\d*)(\\D)");

    static String encode(String text) {
        return RUN.matcher(text).replaceAll(found -> (found.group().length() > 1 ? "" + found.group().length() : "") + found.group(1));
    }

    static String decode(String text) {
        return ENCODED.matcher(text).replaceAll(found -> found.group(2).repeat(found.group(1).isEmpty() ? 1 : Integer.parseInt(found.group(1))));
    }

    public static void main(String[] args) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String text = line.substring(7);
            System.out.println(line.startsWith("encode") ? encode(text) : decode(text));
        }
    }
}
