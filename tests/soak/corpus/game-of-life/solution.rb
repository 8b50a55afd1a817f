class Board
  OFFSETS = [-1, 0, 1].product([-1, 0, 1]) - [[0, 0]]

  def initialize(rows) = @rows = rows

  def next
    Board.new(@rows.each_with_index.map { |row, y| row.each_char.with_index.map { |cell, x| state(cell, x, y) }.join })
  end

  def to_s = @rows.join("\n")

  private

  def state(cell, x, y)
    near = OFFSETS.count { |dx, dy| alive?(x + dx, y + dy) }
    near == 3 || (near.between?(2, 3) && cell == '#') ? '#' : '.'
  end

  def alive?(x, y)
    x >= 0 && y >= 0 && @rows[y]&.slice(x) == '#'
  end
end

generations, *rows = $stdin.readlines(chomp: true)
puts generations.to_i.times.reduce(Board.new(rows)) { |board, _| board.next }.to_s
