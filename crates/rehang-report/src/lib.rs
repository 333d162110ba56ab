//! rehang-report
