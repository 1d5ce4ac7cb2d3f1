//! Tests of the options as a whole.

mod documented;
