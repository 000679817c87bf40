package fake

const elsewhere = "text"
