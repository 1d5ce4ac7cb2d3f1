//! Jobs side by side: on several paths, with several values of an option, and against earlier results.
