// Command restore answers questions about pictures with multimodal models that read few
// visual tokens. See `restore --help`.
package main

import "os"

func main() { os.Exit(thisProgram.Run()) }
