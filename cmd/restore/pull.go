package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/hub"
)

func newPull(a *cli.App) *cobra.Command {
	var include []string
	var verify bool
	cmd := &cobra.Command{
		Use:   "pull ORG/NAME[@REVISION][:QUANTISATION]",
		Short: "Download a model from the Hugging Face hub",
		Long: `Download a model from the Hugging Face hub into the cache that Python's huggingface_hub reads and writes, and print its path.
By default it downloads the files that the model needs: safetensors rather than .bin, or one GGUF quantisation with its projector;
--include selects other files. An interrupted download continues where it stopped, and every file's hash is checked.
A file of the cache whose size is wrong is downloaded again; --verify compares hashes as well.

HF_TOKEN is the token for gated and private repositories, HF_ENDPOINT another hub, HF_HUB_CACHE or HF_HOME the location of the cache.
HF_HUB_OFFLINE=1 forbids requests; HTTPS_PROXY, HTTP_PROXY and NO_PROXY apply.`,
		Example: `  restore pull llava-hf/llava-1.5-7b-hf
  restore pull ggml-org/Qwen2.5-VL-7B-Instruct-GGUF:Q4_K_M
  restore run -m llava-hf/llava-1.5-7b-hf --image cat.jpg -p "What is there?"`,
		Args: oneName,
	}
	cmd.Flags().StringArrayVar(&include, "include", nil,
		"download only the files whose path matches this `pattern` (*, ?, [abc]; may be "+
			"repeated)")
	cmd.Flags().BoolVar(&verify, "verify", false,
		"compare the files in the cache with their hashes, and download those again that differ")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, err := hub.ParseName(args[0])
		if err != nil {
			return &cli.UsageError{Err: err}
		}
		if len(include) > 0 && name.Quant != "" {
			return cli.Flagf("include", "got %q, want none with the quantisation %s, which "+
				"chooses the files", include, name.Quant)
		}
		c, err := hub.New(a.Getenv)
		if err != nil {
			return err
		}
		p, err := cli.PullModel(cmd.Context(), a, c, name, include, verify)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.Out, p.Model)
		return err
	}
	return cmd
}

// oneName requires a repository's name as the only argument.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("%s: got %d arguments, want one ORG/NAME", cli.Path(cmd), len(args))
	}
	return nil
}
