def paired?(line)
  text = line.gsub(/[^\[\](){}]/, '')
  nil while text.gsub!(/\(\)|\[\]|{}/, '')
  text.empty?
end

while (line = gets)
  puts paired?(line) ? 'yes' : 'no'
end
