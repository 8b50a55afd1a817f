NUMERALS = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1].zip(%w[M CM D CD C XC L XL X IX V IV I])

class Integer
  def to_roman
    NUMERALS.reduce([+'', self]) { |(text, rest), (value, numeral)| [text << numeral * (rest / value), rest % value] }.first
  end
end

puts $stdin.readlines.map { |line| line.to_i.to_roman }
