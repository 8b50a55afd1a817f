"""HTTP itself: connections, who asks, the frame around every request, answers that stream, and failures as one shape."""
