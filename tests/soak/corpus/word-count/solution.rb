words = $stdin.read.downcase.scan(/[a-z0-9]+(?:'[a-z]+)*/)
words.tally.sort.each { |word, count| puts "#{word} #{count}" }
