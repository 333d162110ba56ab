//! rehang-train
