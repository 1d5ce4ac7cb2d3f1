//! How a run is told: fio's formats.
