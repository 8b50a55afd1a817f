import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

public class Life {
    private final boolean[][] cells;

    Life(String[] rows) {
        cells = new boolean[rows.length][rows[0].length()];
        for (int y = 0; y < rows.length; y++)
            for (int x = 0; x < rows[y].length(); x++) cells[y][x] = rows[y].charAt(x) == '#';
    }

    private boolean isAlive(int x, int y) {
        return y >= 0 && y < cells.length && x >= 0 && x < cells[y].length && cells[y][x];
    }

    private int neighbours(int x, int y) {
        int near = 0;
        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++)
                if ((dx != 0 || dy != 0) && isAlive(x + dx, y + dy)) near++;
        return near;
    }

    @Override
    public String toString() {
        var text = new StringBuilder();
        for (boolean[] row : cells) {
            for (boolean cell : row) text.append(cell ? '#' : '.');
            text.append('\n');
        }
        return text.toString();
    }

    Life next() {
        var rows = toString().split("\n");
        for (int y = 0; y < rows.length; y++) {
            var row = new StringBuilder(rows[y]);
            for (int x = 0; x < row.length(); x++) {
                int near = neighbours(x, y);
                row.setCharAt(x, near == 3 || near > 1 && near < 4 && isAlive(x, y) ? '#' : '.');
            }
            rows[y] = row.toString();
        }
        return new Life(rows);
    }

    public static void main(String[] args) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in));
        int generations = Integer.parseInt(input.readLine());
        var life = new Life(input.lines().toArray(String[]::new));
        while (generations-- > 0) life = life.next();
        System.out.print(life);
    }
}
