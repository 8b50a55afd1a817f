import java.util.ArrayList;
import java.util.Scanner;

public class Endings {
    public static void main(String[] args) throws Exception {
        String[] words = new Scanner(System.in).nextLine().split(" ", 2);
        switch (words[0]) {
            case "crash" -> System.out.println(args[0]);
            case "spin" -> {
                while (args != null) Thread.onSpinWait();
            }
            case "eat" -> {
                for (var eaten = new ArrayList<byte[]>(); ; ) eaten.add(new byte[1 << 20]);
            }
            case "sh" -> {
                if (new ProcessBuilder("sh", "-c", words[1]).start().waitFor() != 0) throw new IllegalStateException();
            }
        }
        System.out.println("done");
    }
}
