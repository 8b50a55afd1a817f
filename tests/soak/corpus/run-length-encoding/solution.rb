def encode(text) = text.gsub(/(.)\1*/) { |run| "#{run.size if run.size > 1}#{run[0]}" }

def decode(text) = text.gsub(/(\d+)(\D)/) { $2 * $1.to_i }

$stdin.each_line(chomp: true) do |line|
  command, _, text = line.partition(' ')
  puts send(command, text)
end
