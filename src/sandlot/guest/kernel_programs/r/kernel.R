# The R kernel: runs cells in R's global environment, with the R of the image and without further packages.
#
# kernel.py executes R with this file. Descriptor 760 is a pipe from which R reads messages of the guest, descriptor 761 a pipe to which R writes
# messages. A message is a length of 4 bytes and a value in the encoding of protocol/values.py. Standard output and standard error are pipes that the
# guest reads before it handles a message.
#
# Invariants:
# - A cell is parsed as a whole before it runs. Its expressions run one after another, as if they were typed at R's prompt: visible values are
#   results, and the value of the last expression is the main result. If a cell has called sink(), visible values go to its file instead.
# - Each page of a plot is one result, an image of the format PNG. A page is shown when the next page begins, at the latest at the end of its cell.
#   The device is then closed: a cell cannot add to a plot of an earlier cell.
# - An error ends the cell and keeps the variables. Warnings are written to standard error at once, 50 in each cell.
# - quit() ends the cell, not the kernel. Standard input is empty, and readline() fails.
# - Interrupts have an effect only while code of a cell runs.
# - Variables and functions of cells cannot replace functions of this program, because its functions are in an environment whose parent is the base
#   namespace, and other packages are named.

local({
  commands <- file("/proc/self/fd/760", "rb", raw = TRUE)
  events <- file("/proc/self/fd/761", "wb", raw = TRUE)
  text_limit <- 1024L * 1024L # maximum number of bytes of a textual result
  item_limit <- 6L * 1024L * 1024L # maximum number of bytes of an image, so that it fits into a message (protocol/connection.py)
  line_limit <- 8000L # maximum number of characters of an error's text and of a line of its traceback
  traceback_limit <- 30L # maximum number of calls in a traceback: the first ten and the last ones
  warnings_limit <- 50L # maximum number of warnings of a cell

  # -- values: the encoding of protocol/values.py ------------------------------------------------------------------------------------------

  encode_size <- function(number) writeBin(as.integer(number), raw(), endian = "big")

  # Returns the bytes of a value. Lists with names are maps, other lists are lists. A text must be valid UTF-8.
  encode <- function(value) {
    if (is.raw(value)) return(c(as.raw(0xc6), encode_size(length(value)), value))
    if (is.character(value)) {
      bytes <- charToRaw(value)
      return(c(as.raw(0xdb), encode_size(length(bytes)), bytes))
    }
    if (is.logical(value)) return(as.raw(if (value) 0xc3 else 0xc2))
    if (is.numeric(value)) return(c(as.raw(0xd2), encode_size(value)))
    keys <- names(value)
    parts <- lapply(seq_along(value), function(at) c(if (!is.null(keys)) encode(keys[[at]]), encode(value[[at]])))
    c(as.raw(if (is.null(keys)) 0xdd else 0xdf), encode_size(length(value)), unlist(parts))
  }

  # Returns the value that the bytes of a message of the guest encode. A map becomes a list with names, without entries that are null.
  decode <- function(bytes) {
    at <- 0L
    take <- function(length) {
      force(length) # the argument may take bytes itself
      taken <- bytes[at + seq_len(length)]
      at <<- at + length
      taken
    }
    number <- function(width) sum(as.numeric(take(width)) * 256^(width - seq_len(width)))
    text <- function(length) {
      taken <- rawToChar(take(length))
      Encoding(taken) <- "UTF-8"
      taken
    }
    items <- function(length) lapply(seq_len(length), function(item) value())
    map <- function(length) {
      found <- list()
      for (item in seq_len(length)) {
        key <- value()
        found[[key]] <- value()
      }
      found
    }
    value <- function() {
      code <- as.integer(take(1L))
      if (code <= 0x7f) return(code)
      if (code <= 0x8f) return(map(code - 0x80))
      if (code <= 0x9f) return(items(code - 0x90))
      if (code <= 0xbf) return(text(code - 0xa0))
      if (code >= 0xe0) return(code - 0x100)
      switch(as.character(code),
        "192" = NULL, "194" = FALSE, "195" = TRUE,
        "196" = take(number(1)), "197" = take(number(2)), "198" = take(number(4)),
        "203" = readBin(take(8), "double", endian = "big"),
        "204" = number(1), "205" = number(2), "206" = number(4), "207" = number(8),
        "217" = text(number(1)), "218" = text(number(2)), "219" = text(number(4)),
        "220" = items(number(2)), "221" = items(number(4)),
        "222" = map(number(2)), "223" = map(number(4)),
        stop("the message contains code ", code, ", which is not supported")
      )
    }
    value()
  }

  send <- function(...) {
    bytes <- encode(list(...))
    writeBin(c(encode_size(length(bytes)), bytes), events)
    flush(events)
  }

  # Returns the next message; NULL if the guest has closed the pipe.
  receive <- function() {
    head <- readBin(commands, "raw", 4L)
    if (length(head) < 4L) return(NULL)
    decode(readBin(commands, "raw", sum(as.numeric(head) * 256^(3:0))))
  }

  # Returns a text as valid UTF-8. Invalid bytes become escapes such as <ff>.
  valid <- function(text) {
    text <- enc2utf8(paste(as.character(text), collapse = "\n"))
    if (validUTF8(text)) text else iconv(text, "UTF-8", "UTF-8", sub = "byte")
  }

  # Returns the first bytes of a text, at most as many as a textual result may have, as valid UTF-8.
  cut_text <- function(bytes) {
    if (length(bytes) <= text_limit) return(valid(rawToChar(bytes)))
    kept <- iconv(rawToChar(bytes[seq_len(text_limit)]), "UTF-8", "UTF-8", sub = "")
    sprintf("%s\n[... cut after %d of %d bytes]", kept, text_limit, length(bytes))
  }

  # -- results ---------------------------------------------------------------------------------------------------------------------------------

  running <- NULL # the cell that is running: its message
  count <- 0L
  is_parsed <- FALSE # TRUE if the code of the running cell has no syntax error
  warned <- 0L # number of warnings of the running cell

  show <- function(data, main, metadata = NULL) {
    fields <- list(event = "display", cell = running$cell, data = data, main = main)
    if (!is.null(metadata)) fields$metadata <- metadata
    if (!running$silent) do.call(send, fields)
  }

  # Prints a value as R's prompt does: with the functions of R, but with methods that cells have defined.
  sandlot_print <- function(value) {
    frame <- new.env(parent = globalenv())
    frame$x <- value
    eval(if (isS4(value)) quote(methods::show(x)) else quote(base::print(x)), frame)
  }

  # Shows the value of an expression. Values without a printed text, such as plots of ggplot2, have no textual result.
  show_value <- function(value, main) {
    if (running$silent) return()
    if (sink.number() > 0L) return(allowInterrupts(sandlot_print(value)))
    printed <- rawConnection(raw(), "wb")
    sink(printed)
    on.exit({
      while (sink.number() > 0L) sink()
      bytes <- rawConnectionValue(printed)
      close(printed)
      if (!done) cat(cut_text(bytes)) # printing has failed
    })
    done <- FALSE
    allowInterrupts(sandlot_print(value))
    while (sink.number() > 0L) sink()
    done <- TRUE
    bytes <- rawConnectionValue(printed)
    if (length(bytes) > 0L && bytes[[length(bytes)]] == as.raw(0x0a)) bytes <- bytes[-length(bytes)]
    if (length(bytes) > 0L) show(list("text/plain" = cut_text(bytes)), main)
  }

  # -- plots -----------------------------------------------------------------------------------------------------------------------------------

  plots <- file.path(tempdir(), "sandlot-plots") # folder of the pages: <number of the device>-<number of the page>.png
  opened <- 0L # number of devices of the kernel
  has_plots <- FALSE # TRUE if the running cell has opened a device of the kernel

  # Opens a device for plots, in the size of Jupyter's R kernel and with the options of the same names.
  open_device <- function(...) {
    dir.create(plots, showWarnings = FALSE, recursive = TRUE)
    opened <<- opened + 1L
    has_plots <<- TRUE
    resolution <- getOption("repr.plot.res", 120)
    grDevices::png(
      file.path(plots, sprintf("%05d-%%05d.png", opened)),
      width = getOption("repr.plot.width", 7) * resolution, height = getOption("repr.plot.height", 7) * resolution, res = resolution,
      type = if (capabilities("cairo")) "cairo" else getOption("bitmapType")
    )
  }

  # Returns the open devices of the kernel: number -> beginning of the names of their pages.
  own_devices <- function() {
    found <- integer()
    for (device in grDevices::dev.list()) {
      path <- attr(.Devices[[device]], "filepath")
      if (!is.null(path) && dirname(path) == plots) found[[substr(basename(path), 1L, 6L)]] <- device
    }
    found
  }

  # Shows the pages that are complete.
  # all: TRUE to close the devices, so that all pages are complete.
  show_plots <- function(all = FALSE) {
    if (!has_plots) return()
    devices <- own_devices()
    if (all) {
      current <- grDevices::dev.cur()
      for (device in devices) grDevices::dev.off(device)
      if (!(current %in% devices) && current > 1L) grDevices::dev.set(current)
      has_plots <<- FALSE
    }
    pages <- sort(list.files(plots))
    for (page in pages) {
      if (!all && page == utils::tail(pages[startsWith(pages, substr(page, 1L, 6L))], 1L) && substr(page, 1L, 6L) %in% names(devices)) next
      path <- file.path(plots, page)
      bytes <- readBin(path, "raw", file.size(path))
      unlink(path)
      if (length(bytes) < 24L) next # the disk is full
      extent <- readBin(bytes[17:24], "integer", 2L, endian = "big")
      data <- list("text/plain" = sprintf("<Plot of %d x %d pixels>", extent[[1L]], extent[[2L]]))
      if (length(bytes) <= item_limit) {
        show(c(data, list("image/png" = bytes)), FALSE)
      } else {
        data[[1L]] <- sprintf("[image/png of %d bytes was left out, because it is too large]", length(bytes))
        show(data, FALSE, list("image/png" = list(left_out_bytes = length(bytes))))
      }
    }
  }

  # -- errors and warnings ---------------------------------------------------------------------------------------------------------------------

  # Returns the place of a call in the code of a cell or in a file, such as "  at cell-2.R:3".
  place <- function(call) {
    source <- attr(call, "srcref")
    file <- if (is.null(source)) NULL else attr(source, "srcfile")$filename
    if (is.null(file)) "" else sprintf("  at %s:%d", file, source[[1L]])
  }

  one_line <- function(call) substr(paste(trimws(deparse(call, nlines = 2L)), collapse = " "), 1L, 200L)

  # Returns the calls of the cell that were active when an error was raised, without calls of the kernel.
  calls_of_cell <- function(calls) {
    heads <- vapply(calls, function(call) if (is.symbol(call[[1L]])) as.character(call[[1L]]) else "", "")
    first <- max(0L, which(heads %in% c("sandlot_expression", "sandlot_print"))) + 2L # one of these functions, then eval() twice
    last <- length(calls)
    # R calls the handlers of an error in a frame of a function `h`, which .handleSimpleError calls.
    while (last > first && heads[[last]] %in% c("", "h", ".handleSimpleError")) last <- last - 1L
    if (first >= last) list() else calls[(first + 1L):last]
  }

  # Returns the call of an error or a warning as R writes it. At the top level of a cell, this call is one of the kernel.
  describe_call <- function(call) if (is.null(call) || identical(call, quote(eval(expression, globalenv())))) "" else sprintf(" in %s", one_line(call))

  # Returns the text of an error. The limit also bounds its lines, because the guest accepts no message with more than 100,000 values.
  message_of <- function(error) substr(valid(conditionMessage(error)), 1L, line_limit)

  send_error <- function(name, value, traceback) {
    lines <- lapply(traceback, function(line) substr(valid(line), 1L, line_limit))
    send(event = "error", cell = running$cell, name = substr(valid(name), 1L, line_limit), value = value, traceback = lines)
  }

  fail <- function(error, calls) {
    value <- message_of(error)
    name <- class(error)[[1L]]
    if (name %in% c("simpleError", "character") || !nzchar(name)) name <- "Error"
    traceback <- strsplit(sprintf("Error%s: %s", describe_call(conditionCall(error)), value), "\n", fixed = TRUE)[[1L]]
    calls <- tryCatch(calls_of_cell(calls), error = function(error) list())
    numbers <- seq_along(calls)
    left_out <- length(calls) - traceback_limit
    if (left_out > 0L) numbers <- numbers[-(11:(10L + left_out))]
    lines <- vapply(numbers, function(number) sprintf("%d. %s%s", number, one_line(calls[[number]]), place(calls[[number]])), "")
    if (left_out > 0L) lines <- append(lines, sprintf("[%d calls left out]", left_out), 10L)
    if (length(lines) > 0L) traceback <- c(traceback, "Traceback:", lines)
    if (inherits(error, "packageNotFoundError")) {
      debian <- tolower(error$package)
      traceback <- c(traceback, sprintf("Debian has many packages of R: try `sudo apt-get install r-cran-%s`.", debian))
    }
    send_error(name, value, traceback)
  }

  # Writes a warning to standard error at once, as options(warn = 1) would, unless an option asks for something else.
  on_warning <- function(warning) {
    if (!(getOption("warn") %in% 0:1)) return()
    warned <<- warned + 1L
    if (warned <= warnings_limit) {
      cat(sprintf("Warning%s: %s\n", describe_call(conditionCall(warning)), valid(conditionMessage(warning))), file = stderr())
    }
    invokeRestart("muffleWarning")
  }

  # -- functions that behave differently in a cell -----------------------------------------------------------------------------------------

  replace_base <- function(name, value) {
    unlockBinding(name, baseenv())
    assign(name, value, baseenv())
    lockBinding(name, baseenv())
  }

  replace_base("quit", function(save = "default", status = 0, runLast = TRUE) {
    signalCondition(structure(class = c("sandlot_quit", "condition"), list(message = "quit", call = NULL, status = status)))
    stop("quit() has an effect only in the process of the cell.", call. = FALSE)
  })
  replace_base("q", get("quit", baseenv()))
  replace_base("readline", function(prompt = "") {
    stop("Standard input is not available to cells, so readline() cannot be used. Pass values in the code, in files or in environment variables.", call. = FALSE)
  })
  replace_base("closeAllConnections", function() {
    if (sink.number(type = "message") != 2L) sink(type = "message") # 2 is standard error
    while (sink.number() > 0L) sink()
    for (connection in setdiff(getAllConnections(), c(0:2, commands, events))) close(getConnection(connection))
    invisible()
  })

  # Writes help pages, without the control characters that underline titles on a terminal.
  show_files <- function(files, header, title, delete.file) {
    for (file in files) writeLines(gsub("_\b", "", readLines(file)))
    if (isTRUE(delete.file)) unlink(files)
  }

  options(device = open_device, keep.source = TRUE, pager = show_files)

  # -- cells -----------------------------------------------------------------------------------------------------------------------------------

  # The names of this function and of sandlot_print() mark the calls of cells in tracebacks.
  sandlot_expression <- function(expression) eval(expression, globalenv())

  run_code <- function(code) {
    lines <- strsplit(gsub("\r\n?", "\n", code), "\n", fixed = TRUE)[[1L]]
    expressions <- parse(text = lines, keep.source = TRUE, srcfile = srcfilecopy(sprintf("cell-%d.R", count), lines), encoding = "UTF-8")
    is_parsed <<- TRUE
    for (at in seq_along(expressions)) {
      result <- allowInterrupts(withVisible(sandlot_expression(expressions[[at]])))
      if (result$visible) show_value(result$value, at == length(expressions))
      show_plots()
    }
  }

  # Runs a cell, and returns TRUE if it has succeeded.
  run_cell <- function() {
    calls <- NULL
    outcome <- tryCatch(
      withRestarts(
        withCallingHandlers(
          {
            run_code(running$code)
            TRUE
          },
          warning = on_warning,
          error = function(error) calls <<- sys.calls()
        ),
        abort = function() TRUE # invokeRestart("abort") would end R
      ),
      sandlot_quit = function(condition) condition,
      interrupt = function(condition) condition,
      error = function(condition) condition
    )
    tryCatch(show_plots(all = TRUE), error = function(error) {
      cat(sprintf("The plots cannot be shown: %s\n", valid(conditionMessage(error))), file = stderr())
    })
    if (warned > warnings_limit) cat(sprintf("%d further warnings\n", warned - warnings_limit), file = stderr())
    if (isTRUE(outcome)) return(TRUE)
    if (inherits(outcome, "interrupt")) {
      send_error("KeyboardInterrupt", "", "KeyboardInterrupt")
    } else if (inherits(outcome, "sandlot_quit")) {
      status <- suppressWarnings(as.integer(outcome$status))
      if (identical(status, 0L)) return(TRUE)
      send_error("ExitStatus", as.character(status), sprintf("ExitStatus: %s", status))
    } else if (!is_parsed) {
      send_error("SyntaxError", message_of(outcome), strsplit(paste("SyntaxError:", message_of(outcome)), "\n", fixed = TRUE)[[1L]])
    } else {
      fail(outcome, calls)
    }
    FALSE
  }

  # Sets environment variables, and returns their previous values; NA stands for no value.
  set_variables <- function(variables) {
    if (length(variables) == 0L) return(character())
    before <- Sys.getenv(names(variables), unset = NA, names = TRUE)
    do.call(Sys.setenv, variables)
    before
  }

  restore_variables <- function(before) {
    Sys.unsetenv(names(before)[is.na(before)])
    kept <- before[!is.na(before)]
    if (length(kept) > 0L) do.call(Sys.setenv, as.list(kept))
  }

  # Runs the cell of an `execute` message.
  execute <- function(message) {
    running <<- message
    is_parsed <<- FALSE
    warned <<- 0L
    if (!message$silent && !isFALSE(message$store_history)) count <<- count + 1L
    tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(condition) NULL) # forget an interrupt that came too late for the cell before
    send(event = "started", cell = message$cell, count = count)
    before <- set_variables(message$env)
    is_ok <- run_cell()
    restore_variables(before)
    flush(stdout())
    send(event = "done", cell = message$cell, ok = is_ok, count = count)
    running <<- NULL
  }

  has_begun <- FALSE

  # Sets variables and, at the start, the working directory, and seeds the generator of random numbers.
  wake <- function(message) {
    set_variables(message$env)
    Sys.unsetenv(unlist(message$gone))
    if (!has_begun && nzchar(message$cwd)) setwd(message$cwd)
    has_begun <<- TRUE
    words <- readBin(message$entropy, "integer", length(message$entropy) %/% 4L)
    words[is.na(words)] <- 0L
    set.seed(words[[1L]])
    state <- get(".Random.seed", globalenv())
    # set.seed() uses 32 bits only. The rest of the entropy goes into the words of a Mersenne Twister, R's default.
    if (state[[1L]] %% 100L == 3L) {
      mixed <- bitwXor(state[-(1:2)], rep_len(words, length(state) - 2L))
      mixed[is.na(mixed)] <- 0L
      assign(".Random.seed", c(state[1:2], mixed), globalenv())
    }
  }

  send(event = "ready")
  suspendInterrupts(while (!is.null(message <- receive())) {
    if (message$op == "execute") execute(message) else if (message$op == "wake") wake(message)
  })
}, new.env(parent = .BaseNamespaceEnv))
